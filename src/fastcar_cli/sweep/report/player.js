/* Dense and replayed videos side by side: one clock, one scrubber, the replay map over the pixels. */
const FPS = MODEL.fps || 8;
const PLAYER = { playing: false, wanted: false, heat: true, opacity: 0.8, difference: false, rate: 1, frame: 0, cell: null, dense: null, run: 0 };
const VIEW = {};

const framesOf = (cell) => cell?.replay?.map?.length || cell?.replay?.by_frame?.length || MODEL.frames || 1;
const seedsOf = (prompt) => [...new Set(CELLS.filter((c) => c.prompt === prompt).map((c) => c.seed))];
const cellsOf = (prompt, seed) => CELLS.filter((c) => c.prompt === prompt && c.seed === seed);

/** The cell of a setting for the prompt and seed that are looked at. */
const cellOf = (setting) => cellsOf(STATE.prompt, STATE.seed).find((c) => settingKey(c) === setting);
function chooseSetting(row) {
  const key = settingKey(row);
  let change = { setting: key };
  if (!cellsOf(STATE.prompt, STATE.seed).some((c) => settingKey(c) === key)) {
    const other = CELLS.find((c) => settingKey(c) === key);
    if (other) change = { ...change, prompt: other.prompt, seed: other.seed };
  }
  select(change);
}
function chooseCell(cell) {
  select({ prompt: cell.prompt, seed: cell.seed, setting: settingKey(cell) });
  at("watch").scrollIntoView({ block: "start" });
}

function drawPick() {
  const prompts = [...new Set(CELLS.map((c) => c.prompt))], seeds = seedsOf(STATE.prompt);
  const cells = cellsOf(STATE.prompt, STATE.seed), [tau, window_, gate, backend, score, draft] = JSON.parse(STATE.setting);
  const series = seriesOf({ tau, window: window_, gate, backend, score, draft });
  const fields = [picker("Prompt", prompts.map((p, i) => [String(i), p]), String(prompts.indexOf(STATE.prompt)), (v) => {
    const prompt = prompts[Number(v)];
    select({ prompt, seed: seedsOf(prompt).includes(STATE.seed) ? STATE.seed : seedsOf(prompt)[0] });
  }, "field grow")];
  if (seeds.length > 1) fields.push(picker("Seed", seeds.map((x) => [String(x), String(x)]), String(STATE.seed), (v) => select({ seed: seeds.find((x) => String(x) === v) })));
  if (SERIES.length > 1) {
    fields.push(picker("Setting", SERIES.map((x) => [x.key, seriesText(x)]), series, (key) => {
      const same = cells.filter((c) => seriesKey(c) === key && has(c.tau));
      const next = same.find((c) => c.tau === tau) || same[0] || cells.find((c) => seriesKey(c) === key);
      if (next) select({ setting: settingKey(next) });
    }));
  }
  const offered = cells.filter((c) => has(c.tau) && seriesKey(c) === series).sort((a, b) => tauNumber(b.tau) - tauNumber(a.tau));
  const chips = h("div", { class: "chips", role: "group", "aria-label": "tau" }, offered.map((c) => h("button", {
    type: "button", "aria-pressed": String(settingKey(c) === STATE.setting), class: KNEES.has(settingKey(c)) ? "knee" : null,
    title: KNEES.has(settingKey(c)) ? "the knee" : null, onclick: () => select({ setting: settingKey(c) }),
  }, tauText(c.tau))));
  const focused = document.activeElement, index = at("pick").contains(focused) ? [...at("pick").querySelectorAll("select, button")].indexOf(focused) : -1;
  at("pick").replaceChildren(...fields, h("div", { class: "field" }, "tau", chips));
  if (index >= 0) at("pick").querySelectorAll("select, button")[index]?.focus();
}

function screen(name, color) {
  const video = h("video", { muted: true, playsinline: true, preload: "auto", "aria-label": name });
  video.muted = true;
  const absent = h("div", { class: "absent", hidden: true }), box = h("div", { class: "frame pixels" }, video, absent);
  const caption = h("span", {}, name);
  return { figure: h("figure", { class: "screen" }, h("figcaption", {}, h("i", { style: `background:${color}` }), caption), box), video, absent, box, caption };
}

function buildPlayer() {
  VIEW.a = screen("Dense", "var(--dense)");
  VIEW.b = screen("Replayed", "var(--replay)");
  VIEW.heat = h("canvas", { id: "heat", "aria-hidden": "true" });
  VIEW.b.box.append(VIEW.heat);
  VIEW.diff = h("canvas", { id: "difference", role: "img", "aria-label": "Difference of both videos, four times amplified" });
  VIEW.third = h("figure", { class: "screen", hidden: true }, h("figcaption", {}, "Difference × 4"), h("div", { class: "frame" }, VIEW.diff));
  VIEW.screens = h("div", { class: "screens" }, VIEW.a.figure, VIEW.b.figure, VIEW.third);
  VIEW.play = h("button", { type: "button", class: "main", id: "play", onclick: () => (PLAYER.playing ? pause() : play()) }, "Play");
  VIEW.scrub = h("input", { type: "range", id: "scrub", min: 1, value: 1, step: 1, "aria-label": "Frame", oninput: (e) => { pause(); seek(e.target.value - 1); } });
  VIEW.number = h("output", { id: "frame-number", for: "scrub" });
  const step = (by, sign, name) => h("button", { type: "button", class: "step", "aria-label": name, onclick: () => { pause(); seek(PLAYER.frame + by); } }, sign);
  const rate = h("select", { "aria-label": "Playing speed", onchange: (e) => { PLAYER.rate = Number(e.target.value); rates(); } },
    [["1", "1×"], ["0.5", "½×"], ["0.25", "¼×"]].map(([v, t]) => h("option", { value: v }, t)));
  const opacity = h("label", { class: "opacity" }, "strength", h("input", { type: "range", min: 10, max: 100, value: 80, oninput: (e) => { PLAYER.opacity = e.target.value / 100; drawHeat(); } }));
  const looks = h("div", { class: "looks" },
    h("label", { class: "check" }, h("input", { type: "checkbox", id: "show-heat", checked: true, onchange: (e) => { PLAYER.heat = e.target.checked; opacity.style.visibility = PLAYER.heat ? "" : "hidden"; drawHeat(); } }), "Map over the video: replay, or accepted drafts where nothing replays"), opacity,
    h("label", { class: "check" }, h("input", { type: "checkbox", id: "show-difference", onchange: (e) => { PLAYER.difference = e.target.checked; VIEW.third.hidden = !PLAYER.difference; VIEW.screens.classList.toggle("three", PLAYER.difference); drawDifference(); } }), "Difference"));
  VIEW.strip = h("div", { class: "strip" });
  VIEW.about = h("p", { class: "about" });
  VIEW.side = h("div", { class: "side", id: "side" });
  at("player").append(h("div", {}, VIEW.screens,
    h("div", { class: "transport" }, VIEW.play, step(-1, "◂", "Frame back"), VIEW.scrub, step(1, "▸", "Frame forward"), VIEW.number, rate), looks, VIEW.strip, VIEW.about), VIEW.side);
  VIEW.a.video.addEventListener("ended", again);
  VIEW.b.video.addEventListener("ended", again);
  for (const { video } of [VIEW.a, VIEW.b]) {
    video.addEventListener("seeked", drawDifference);
    video.addEventListener("loadeddata", () => {
      const edge = Math.min(video.videoWidth, video.videoHeight);
      video.parentElement.classList.toggle("pixels", edge < 200);
      for (const box of document.querySelectorAll(".player .frame")) box.style.setProperty("--ratio", `${video.videoWidth} / ${video.videoHeight}`);
      if (PLAYER.wanted) play(); else seek(PLAYER.frame);
    });
  }
  new ResizeObserver(drawStrip).observe(VIEW.strip);
}

const shown = () => [VIEW.a.video, VIEW.b.video].filter((v) => v.getAttribute("src"));
function rates() {
  for (const v of shown()) v.playbackRate = PLAYER.rate;
}
/** Let both videos run from the frame shown; the first one is the clock. */
async function play() {
  const videos = shown();
  if (!videos.length) return;
  PLAYER.wanted = true;
  if (videos.some((v) => v.readyState < 2)) return;
  if (PLAYER.frame >= framesOf(PLAYER.cell) - 1) seek(0);
  rates();
  const run = ++PLAYER.run;
  PLAYER.playing = true;
  VIEW.play.textContent = "Pause";
  try {
    await Promise.all(videos.map((v) => v.play()));
    tick();
  } catch {
    // The browser refused; a promise that broke because another video was chosen meanwhile means nothing.
    if (run === PLAYER.run) pause();
  }
}
function pause() {
  PLAYER.playing = PLAYER.wanted = false;
  PLAYER.run++;
  VIEW.play.textContent = "Play";
  for (const v of shown()) v.pause();
}
function again() {
  if (!PLAYER.playing) return;
  for (const v of shown()) { v.currentTime = 0; v.play().catch(() => {}); }
}
function seek(frame) {
  PLAYER.frame = Math.max(0, Math.min(framesOf(PLAYER.cell) - 1, Number(frame)));
  for (const v of shown()) v.currentTime = (PLAYER.frame + 0.5) / FPS;
  drawFrame();
}
let ticking = false;
function tick() {
  if (ticking) return;
  ticking = true;
  const step = () => {
    if (!PLAYER.playing) { ticking = false; return; }
    const [clock, other] = shown();
    if (other && Math.abs(other.currentTime - clock.currentTime) > 0.6 / FPS && !other.seeking) other.currentTime = clock.currentTime;
    const frame = Math.min(framesOf(PLAYER.cell) - 1, Math.floor(clock.currentTime * FPS + 1e-3));
    if (frame !== PLAYER.frame) { PLAYER.frame = frame; drawFrame(); }
    drawDifference();
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

/** Show a cell on a screen; videos that are not in the page are linked. */
function load(view, cell) {
  const data = cell && VIDEOS[cell.id], lost = cell && DATA.report.missing.includes(cell.video);
  view.absent.hidden = Boolean(data);
  if (data) {
    const source = `data:video/mp4;base64,${data}`;
    if (view.id !== cell.id) view.video.src = source;
    view.id = cell.id;
    return;
  }
  view.id = null;
  view.video.removeAttribute("src");
  view.video.load();
  view.absent.replaceChildren(...(!cell ? ["No such video"] : lost ? [`${cell.video} could not be read`] : ["Not embedded in this page. ", h("a", { href: cell.video.split("/").map(encodeURIComponent).join("/") }, "Open the file")]));
}

function drawPlayer() {
  drawPick();
  const cells = cellsOf(STATE.prompt, STATE.seed);
  PLAYER.cell = cellOf(STATE.setting) || cells.find((c) => has(c.tau)) || cells[0];
  PLAYER.dense = BY_ID.get(PLAYER.cell.reference) || (has(PLAYER.cell.tau) ? null : PLAYER.cell);
  const wanted = PLAYER.playing || PLAYER.wanted;
  if (PLAYER.playing) pause();
  PLAYER.wanted = wanted;
  VIEW.scrub.max = framesOf(PLAYER.cell);
  const drafts = drafted(PLAYER.cell) && !PLAYER.cell.replay?.ratio;
  VIEW.b.figure.querySelector("i").style.background = `var(${drafts ? "--dense" : "--replay"})`;
  VIEW.b.caption.textContent = drafts ? `Drafts, ${PLAYER.cell.draft}` : has(PLAYER.cell.tau) ? `Replayed, ${levelText(PLAYER.cell.tau)}` : "Dense, the reference itself";
  load(VIEW.a, PLAYER.dense);
  load(VIEW.b, PLAYER.cell);
  PLAYER.frame = Math.min(PLAYER.frame, framesOf(PLAYER.cell) - 1);
  if (wanted && shown().every((v) => v.readyState >= 2)) play();
  drawSide();
  drawStrip();
  drawFrame();
}

function drawSide() {
  const c = PLAYER.cell, rows = [["Setting", settingText(c)], ["Seed", String(c.seed)]];
  if (c.replay) rows.push(["Replayed", `${percent(c.replay.ratio)} of all MLPs`], ["of eligible ones", percent(c.replay.eligible_ratio)]);
  if (drafted(c)) rows.push(["Drafts", `${c.draft}, ${fixed(1)(c.drafts?.tokens_per_pass)} tokens a pass`]);
  const d = c.speed?.decode_s;
  if (has(c.speed?.speedup)) rows.push(["Speed-up", times(c.speed.speedup)]);
  if (d) rows.push(["Decode time", `${fixed(2)(d.median)} s` + (d.runs?.length > 1 ? ` (${fixed(2)(d.min)}–${fixed(2)(d.max)})` : "")]);
  for (const metric of USED_METRICS) {
    if (metric.key === "all_right" || !c.metrics) continue;
    const v = c.metrics[metric.key];
    if (v !== undefined) rows.push([metric.brief || metric.label, metric.key === "psnr_db" && v === null ? "∞, identical" : metric.show(v)]);
  }
  if (c.fpga) rows.push(["Emulated cycles", whole(c.fpga.cycles)], ["Emulated energy", `${short(c.fpga.energy_j)} J`]);
  const names = ["background", "color", "shape", "motion", "size", "persists"], words = { color: "colour", persists: "one object" };
  const verdict = c.fidelity ? h("ul", { class: "verdict", "aria-label": "Is it what the prompt asks for?" }, names.filter((n) => has(c.fidelity[n])).map((n) => h("li", { class: c.fidelity[n] ? "yes" : "no" }, `${c.fidelity[n] ? "✓" : "✗"} ${words[n] || n}`))) : null;
  VIEW.side.replaceChildren(...[h("blockquote", {}, c.prompt), h("dl", {}, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])), verdict].filter(Boolean));
}

/** Bars of replay by frame, with a line of SSIM above, that also seek. */
function drawStrip() {
  const c = PLAYER.cell;
  if (!c) return;
  const width = Math.max(240, VIEW.strip.clientWidth), n = framesOf(c), left = 78, slot = (width - left) / n;
  const rows = [];
  const bars = (list, name, top, tall, low, high, color, show) => {
    rows.push(s("text", { x: 0, y: top + tall / 2 + 4 }, name), s("line", { class: "grid", x1: left, x2: width, y1: top + tall + 0.5, y2: top + tall + 0.5 }));
    for (let i = 0; i < n; i++) {
      const v = list?.[i];
      if (!has(v)) continue;
      const share = Math.max(0, Math.min(1, (v - low) / (high - low || 1)));
      rows.push(s("rect", { x: left + i * slot + slot * 0.12, y: top + tall * (1 - share), width: slot * 0.76, height: Math.max(share ? 1 : 0, tall * share), rx: Math.min(3, slot / 5), fill: color }, s("title", {}, `frame ${i + 1}: ${show(v)}`)));
    }
  };
  let top = 4;
  const ssim = c.frames?.ssim;
  bars(c.replay?.by_frame, "replayed", top, 44, 0, 1, "var(--replay)", percent);
  top += 52;
  if (drafted(c)) {
    const by = c.drafts?.tokens_by_frame;
    bars(by, "tokens/pass", top, 44, 0, Math.max(...(by || []).filter(has), 1), "var(--dense)", fixed(2));
    top += 52;
  }
  if (ssim?.some(has)) {
    const low = Math.min(0.9, ...ssim.filter(has));
    bars(ssim.map((v) => (has(v) ? 1 - v : v)), "1 − SSIM", top, 30, 0, Math.max(0.02, 1 - low), "var(--dense)", fixed(4));
    top += 38;
  }
  for (let i = 0; i < n; i++) rows.push(s("rect", { class: "slot", x: left + i * slot, y: 0, width: slot, height: top, onclick: () => { pause(); seek(i); } }));
  VIEW.now = s("rect", { class: "now", x: left, y: 1, width: slot, height: top - 2, rx: 4 });
  VIEW.slot = { left, slot };
  VIEW.strip.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${top}`, height: top, role: "img", "aria-label": `Replayed by frame: ${(c.replay?.by_frame || []).map(percent).join(", ")}` }, rows, VIEW.now));
  drawFrame();
}

function drawFrame() {
  VIEW.scrub.value = PLAYER.frame + 1;
  const c = PLAYER.cell, replayed = c.replay?.by_frame?.[PLAYER.frame], like = c.frames?.ssim?.[PLAYER.frame];
  VIEW.number.textContent = `frame ${PLAYER.frame + 1} of ${framesOf(c)}`;
  const tokens = drafted(c) ? c.drafts?.tokens_by_frame?.[PLAYER.frame] : null;
  VIEW.about.textContent = [has(tokens) ? `${fixed(1)(tokens)} tokens a pass` : null, has(replayed) ? `${percent(replayed)} replayed` : null, has(like) ? `SSIM ${fixed(4)(like)}` : null].filter(Boolean).join(", ");
  if (VIEW.now) VIEW.now.setAttribute("x", VIEW.slot.left + PLAYER.frame * VIEW.slot.slot);
  drawHeat();
}
/** The map of the frame shown, of replay or of accepted drafts: one canvas pixel a position, scaled without smoothing. */
function drawHeat() {
  const cell = PLAYER.cell, drafts = cell && drafted(cell) && !cell.replay?.ratio;
  const map = (drafts ? cell.drafts : cell?.replay)?.map?.[PLAYER.frame], canvas = VIEW.heat;
  canvas.hidden = !PLAYER.heat || !map || !VIEW.b.id;
  canvas.style.display = canvas.hidden ? "none" : "";
  if (canvas.hidden) return;
  canvas.width = map[0].length;
  canvas.height = map.length;
  const context = canvas.getContext("2d"), [r, g, b] = rgb(drafts ? "--dense" : "--replay");
  map.forEach((line, y) => line.forEach((share, x) => {
    context.fillStyle = `rgb(${r} ${g} ${b} / ${PLAYER.opacity * Math.max(0, Math.min(1, share || 0))})`;
    context.fillRect(x, y, 1, 1);
  }));
}
function drawDifference() {
  const [a, b] = [VIEW.a.video, VIEW.b.video];
  if (!PLAYER.difference || !a.videoWidth || !b.videoWidth) return;
  VIEW.diff.width = a.videoWidth;
  VIEW.diff.height = a.videoHeight;
  const context = VIEW.diff.getContext("2d");
  context.drawImage(a, 0, 0);
  context.globalCompositeOperation = "difference";
  context.drawImage(b, 0, 0, a.videoWidth, a.videoHeight);
  // Doubling twice: the canvas added onto itself.
  context.globalCompositeOperation = "lighter";
  for (let i = 0; i < 2; i++) context.drawImage(VIEW.diff, 0, 0);
}

function startPlayer() {
  buildPlayer();
  LISTENERS.push(drawPlayer);
  drawPlayer();
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const watching = new IntersectionObserver((seen) => {
    if (!seen.some((e) => e.isIntersecting)) return;
    watching.disconnect();
    play();
  }, { threshold: 0.4 });
  watching.observe(VIEW.screens);
}
