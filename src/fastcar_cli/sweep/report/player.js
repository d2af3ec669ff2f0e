/* Dense and replayed videos side by side, with one frame number, one scrubber, and the map over the pixels. */
const FPS = MODEL.fps || 8;
const PLAYER = { playing: false, heat: true, frame: 0, cell: null, dense: null };
const VIEW = {};

const framesOf = (cell) => cell?.replay?.map?.length || MODEL.frames || 1;
/** Whether a cell's map shows accepted drafts, because nothing replays in it. */
const draftsAlone = (cell) => drafted(cell) && !cell.replay?.ratio;
/** Show a setting for the selected prompt and seed, or for the first ones that have it. */
function chooseSetting(row) {
  const mine = (c) => settingKey(c) === settingKey(row), cell = cellsNow().find(mine) || CELLS.find(mine);
  if (cell) watch(cell);
}

function drawPick() {
  const values = (cells, key) => [...new Set(cells.map((c) => c[key]))];
  const prompts = values(CELLS, "prompt"), seeds = values(CELLS.filter((c) => c.prompt === STATE.prompt), "seed");
  const fields = [
    picker("Prompt", prompts.map((p, i) => [String(i), p]), String(prompts.indexOf(STATE.prompt)), (v) => {
      const mine = CELLS.filter((c) => c.prompt === prompts[v]), { prompt, seed } = mine.find((c) => c.seed === STATE.seed) || mine[0];
      select({ prompt, seed });
    }, "field grow"),
    picker("Seed", seeds.map((x) => [String(x), String(x)]), String(STATE.seed), (v) => select({ seed: seeds.find((x) => String(x) === v) })),
    picker("Setting", cellsNow().map((c) => [settingKey(c), knownText(c)]), settingKey(PLAYER.cell), (v) => select({ setting: v })),
  ];
  const focused = [...at("pick").querySelectorAll("select")].indexOf(document.activeElement);
  at("pick").replaceChildren(...fields);
  at("pick").querySelectorAll("select")[focused]?.focus();
}

function screen(name, color) {
  const video = h("video", { playsinline: true, preload: "auto", "aria-label": name });
  video.muted = true;
  const absent = h("div", { class: "absent", hidden: true }), box = h("div", { class: "frame" }, video, absent);
  const caption = h("span", {}, name), swatch = h("i", { style: `background:${color}` });
  return { figure: h("figure", { class: "screen" }, h("figcaption", {}, swatch, caption), box), video, absent, box, caption, swatch };
}

function buildPlayer() {
  VIEW.a = screen("Dense", "var(--dense)");
  VIEW.b = screen("Replayed", "var(--replay)");
  VIEW.heat = h("canvas", { id: "heat", "aria-hidden": "true" });
  VIEW.b.box.append(VIEW.heat);
  VIEW.play = h("button", { type: "button", class: "main", id: "play", onclick: () => play(!PLAYER.playing) }, "Play");
  VIEW.scrub = h("input", { type: "range", id: "scrub", min: 1, value: 1, step: 1, "aria-label": "Frame", oninput: (e) => { play(false); seek(e.target.value - 1); } });
  VIEW.number = h("output", { id: "frame-number", for: "scrub" });
  const step = (by, sign, name) => h("button", { type: "button", class: "step", "aria-label": name, onclick: () => { play(false); seek(PLAYER.frame + by); } }, sign);
  const map = h("input", { type: "checkbox", id: "show-heat", checked: true, onchange: (e) => { PLAYER.heat = e.target.checked; drawHeat(); } });
  VIEW.about = h("p", { class: "sub" });
  VIEW.side = h("div", { class: "side", id: "side" });
  at("player").append(h("div", {}, h("div", { class: "screens" }, VIEW.a.figure, VIEW.b.figure),
    h("div", { class: "transport" }, VIEW.play, step(-1, "◂", "Frame back"), VIEW.scrub, step(1, "▸", "Frame forward"), VIEW.number),
    h("label", { class: "check" }, map, "Map over the video: replay, or accepted drafts if nothing replays"), VIEW.about), VIEW.side);
  for (const { video, box } of [VIEW.a, VIEW.b]) {
    video.addEventListener("loadeddata", () => {
      box.style.setProperty("--ratio", `${video.videoWidth} / ${video.videoHeight}`);
      seek(PLAYER.frame);
    });
  }
  setInterval(advance, 1000 / FPS);
}

const shown = () => [VIEW.a.video, VIEW.b.video].filter((v) => v.getAttribute("src"));
function play(on) {
  PLAYER.playing = on;
  VIEW.play.textContent = on ? "Pause" : "Play";
}
/** Move both videos to a frame; playing uses this too, so that they stay in step. */
function seek(frame) {
  PLAYER.frame = Math.max(0, Math.min(framesOf(PLAYER.cell) - 1, Number(frame)));
  for (const v of shown()) v.currentTime = (PLAYER.frame + 0.5) / FPS;
  drawFrame();
}
/** While playing, move to the next frame (or from the last to the first) once both videos show this one. */
function advance() {
  if (PLAYER.playing && shown().every((v) => v.readyState >= 2 && !v.seeking)) seek((PLAYER.frame + 1) % framesOf(PLAYER.cell));
}

/** Show a cell on a screen; videos that are not in the page are linked. */
function load(view, cell) {
  const data = cell && VIDEOS[cell.id];
  view.absent.hidden = Boolean(data);
  if (data && view.id !== cell.id) view.video.src = `data:video/mp4;base64,${data}`;
  view.id = data ? cell.id : null;
  if (data) return;
  view.video.removeAttribute("src");
  view.video.load();
  const link = () => h("a", { href: cell.video.split("/").map(encodeURIComponent).join("/") }, "Open the file");
  view.absent.replaceChildren(...(!cell ? ["No such video"]
    : DATA.report.missing.includes(cell.video) ? [`${cell.video} could not be read`] : ["Not embedded in this page. ", link()]));
}

function drawPlayer() {
  const cells = cellsNow(), cell = cells.find((c) => settingKey(c) === STATE.setting) || cells.find((c) => !dense(c)) || cells[0];
  const name = draftsAlone(cell) ? `Drafts, ${cell.draft}` : dense(cell) ? "Dense, the reference itself" : `Replayed, ${levelText(cell)}`;
  PLAYER.cell = cell;
  PLAYER.dense = dense(cell) ? cell : CELLS.find((c) => c.id === cell.reference);
  drawPick();
  VIEW.scrub.max = framesOf(cell);
  VIEW.b.swatch.style.background = `var(${draftsAlone(cell) ? "--dense" : "--replay"})`;
  VIEW.b.caption.textContent = name;
  load(VIEW.a, PLAYER.dense);
  load(VIEW.b, cell);
  drawSide();
  seek(PLAYER.frame);
}

function drawSide() {
  const c = PLAYER.cell, seconds = c.speed?.decode_s, rows = [["Setting", settingText(c)], ["Seed", String(c.seed)]];
  if (c.replay) rows.push(["Replayed", `${percent(c.replay.ratio)} of all MLPs`], ["of eligible ones", percent(c.replay.eligible_ratio)]);
  if (drafted(c)) rows.push(["Drafts", `${c.draft}, ${fixed(1)(c.drafts?.tokens_per_pass)} tokens per pass`]);
  if (has(c.speed?.speedup)) rows.push(["Speed-up", times(c.speed.speedup)]);
  if (seconds) rows.push(["Decode time", `${fixed(2)(seconds.median)} s` + (seconds.runs?.length > 1 ? ` (${fixed(2)(seconds.min)}–${fixed(2)(seconds.max)})` : "")]);
  for (const kind of METRICS.filter((k) => c.metrics?.[k.key] !== undefined)) {
    rows.push([kind.label, kind.key === "psnr_db" && !has(c.metrics.psnr_db) ? "∞, identical" : kind.show(c.metrics[kind.key])]);
  }
  if (c.fpga) rows.push(["Emulated cycles", short(c.fpga.cycles)], ["Emulated energy", `${short(c.fpga.energy_j)} J`]);
  for (const [name, right] of Object.entries(c.fidelity || {})) if (has(right)) rows.push([name.replace("_", " "), right ? "✓ yes" : "✗ no"]);
  VIEW.side.replaceChildren(h("blockquote", {}, c.prompt), h("dl", {}, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])));
}

function drawFrame() {
  const c = PLAYER.cell, tokens = drafted(c) ? c.drafts?.tokens_by_frame?.[PLAYER.frame] : null;
  const replayed = c.replay?.by_frame?.[PLAYER.frame], like = c.frames?.ssim?.[PLAYER.frame];
  VIEW.scrub.value = PLAYER.frame + 1;
  VIEW.number.textContent = `frame ${PLAYER.frame + 1} of ${framesOf(c)}`;
  const about = [has(tokens) ? `${fixed(1)(tokens)} tokens per pass` : null, `${percent(replayed)} replayed`, has(like) ? `SSIM ${fixed(4)(like)}` : null];
  VIEW.about.textContent = `This frame: ${about.filter(has).join(", ")}`;
  drawHeat();
}
/** Draw the frame's map of replay or accepted drafts, one canvas pixel per position, scaled without smoothing. */
function drawHeat() {
  const cell = PLAYER.cell, drafts = draftsAlone(cell), canvas = VIEW.heat;
  const map = (drafts ? cell.drafts : cell.replay)?.map?.[PLAYER.frame];
  canvas.style.display = PLAYER.heat && map && VIEW.b.id ? "" : "none";
  if (!map) return;
  canvas.width = map[0].length;
  canvas.height = map.length;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(drafts ? "--dense" : "--replay");
  map.forEach((line, y) => line.forEach((share, x) => {
    context.globalAlpha = 0.8 * Math.max(0, Math.min(1, share || 0));
    context.fillRect(x, y, 1, 1);
  }));
}

function startPlayer() {
  buildPlayer();
  LISTENERS.push(drawPlayer);
}
