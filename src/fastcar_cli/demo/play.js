/* The page of `fastcar play`: requests the newest frame in a loop, and sends the action when it changes. */
const REACH = MODEL.reach ?? 1, PAIR = MODEL.actions === 2;
const KEYS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0], w: [0, -1], s: [0, 1], a: [-1, 0], d: [1, 0] };
const held = new Set(), sent = new Map(), waits = [], ME = Math.random().toString(36).slice(2);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
let action = [...MODEL.rest], count = 0, sending = false, waiting = null, line = {};

async function post(name, body) {
  const response = await fetch(name, { method: "POST", body: JSON.stringify(body) });
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

/** Send an action; while the previous one is on its way, only the latest action waits. */
async function steer(wanted) {
  if (wanted.every((x, i) => x === action[i])) return;
  action = wanted;
  waiting = { action, key: `${ME}-${++count}`, at: performance.now() };
  if (sending) return;
  sending = true;
  while (waiting) {
    const { at: began, ...body } = waiting;
    waiting = null;
    sent.set(body.key, began);
    await post("input", body).then((answer) => answer.error && show("error", answer.error)).catch(() => {});
  }
  sending = false;
}

async function order(name, more = {}) {
  const answer = await post("input", { order: name, ...more }).catch(() => ({ error: "fastcar does not answer" }));
  show("error", answer.error ? `${answer.error}${answer.hint ? `; ${answer.hint}` : ""}` : "");
}

function percentile(share) {
  const sorted = [...waits].sort((x, y) => x - y);
  return sorted.length ? `${Math.round(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))])} ms` : "–";
}

function drawNumbers() {
  const rows = { "Frame": line.steps, "Frames per second": fixed(1)(line.fps), "Tokens per pass": fixed(1)(line.tokens_per_pass),
    "Key press to frame, median": percentile(0.5), "Key press to frame, 99th percentile": percentile(0.99), "Frames decoded ahead": percent(line.hit_share), "Seed": line.seed };
  at("numbers").replaceChildren(...Object.entries(rows).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));
  at("pause").textContent = line.paused ? "Play" : "Pause";
  at("file").textContent = line.file ? `This session: ${line.file}` : "";
  for (const name of ["tau", "draft"]) if (document.activeElement !== at(name) && at(name).dataset.was !== String(line[name])) {
    at(name).value = at(name).dataset.was = String(line[name]);
  }
}

function drawMap() {
  const canvas = at("map"), map = at("show-map").checked && line.map;
  const [rows, columns] = map ? [map.length, map[0].length] : [1, 1], context = canvas.getContext("2d");
  Object.assign(canvas, { width: columns, height: rows });
  if (map) map.forEach((row, y) => row.forEach((share, x) => {
    context.fillStyle = `rgba(251, 146, 60, ${share})`;
    context.fillRect(x, y, 1, 1);
  }));
}

async function draw() {
  const image = new Image(), canvas = at("frame");
  image.src = `data:image/png;base64,${line.png}`;
  await image.decode();
  if (canvas.width !== image.width || canvas.height !== image.height) {
    Object.assign(canvas, { width: image.width, height: image.height });
    at("screen").style.setProperty("--ratio", `${image.width} / ${image.height}`);
  }
  canvas.getContext("2d").drawImage(image, 0, 0);
  if (sent.has(line.key)) {
    waits.push(performance.now() - sent.get(line.key));
    sent.clear();
  }
}

async function follow() {
  for (let lost = false; ;) {
    try {
      const next = await post("frame", { after: line.number });
      if (lost) show("error", "");
      lost = false;
      line = next.png ? next : { ...line, ...next };
      if (next.png) await draw();
      drawMap();
      drawNumbers();
    } catch {
      lost = true;
      show("error", "fastcar does not answer; start fastcar play again if it has ended");
      await sleep(1000);
    }
  }
}

/** The action of two numbers for a direction, of which only the signs of x and y matter. */
const towards = (x, y) => [REACH * Math.sign(x), REACH * Math.sign(y)];
const keyOf = (event) => (event.key.length === 1 ? event.key.toLowerCase() : event.key);
const typing = (event) => /^(INPUT|SELECT)$/.test(event.target.tagName) && event.target.type !== "checkbox";
const byKeys = () => {
  if (PAIR) return steer(towards(...[...held].map((key) => KEYS[key]).reduce(([a, b], [x, y]) => [a + x, b + y], [0, 0])));
  const wanted = [...MODEL.rest];
  for (const key of held) wanted[MODEL.keys[key][0]] = MODEL.keys[key][1];
  return steer(wanted);
};
function byPointer(event) {
  const box = at("screen").getBoundingClientRect();
  const along = (point, start, size) => { const x = (point - start) / size - 0.5; return Math.abs(x) > 0.17 ? x : 0; };
  steer(towards(along(event.clientX, box.left, box.width), along(event.clientY, box.top, box.height)));
}

if (PAIR || MODEL.words) {
  addEventListener("keydown", (event) => {
    if (!(keyOf(event) in (PAIR ? KEYS : MODEL.keys)) || typing(event) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    held.add(keyOf(event));
    byKeys();
  });
  addEventListener("keyup", (event) => held.delete(keyOf(event)) && byKeys());
  addEventListener("blur", () => { held.clear(); byKeys(); });
}
if (PAIR) {
  at("screen").addEventListener("pointerdown", (event) => { at("screen").setPointerCapture(event.pointerId); byPointer(event); });
  at("screen").addEventListener("pointermove", (event) => event.buttons && byPointer(event));
  for (const end of ["pointerup", "pointercancel"]) at("screen").addEventListener(end, byKeys);
} else if (!MODEL.words) {
  const sliders = action.map((_, i) => h("input", { type: "range", min: -REACH, max: REACH, step: REACH / 20, value: 0, "aria-label": `Action ${i + 1}`,
    oninput: () => steer(sliders.map((slider) => Number(slider.value))) }));
  at("sliders").append(...sliders.map((slider, i) => h("label", {}, `${i + 1}`, slider)),
    h("button", { type: "button", onclick: () => { for (const slider of sliders) slider.value = 0; steer(sliders.map(() => 0)); } }, "All zero"));
}
at("pause").addEventListener("click", () => order(line.paused ? "play" : "pause"));
at("step").addEventListener("click", () => order("step"));
at("reset").addEventListener("click", () => order("reset"));
at("new-seed").addEventListener("click", () => order("reset", { seed: /^\d+$/.test(at("seed").value.trim()) ? Number(at("seed").value) : at("seed").value }));
at("change").addEventListener("submit", (event) => { event.preventDefault(); order("change", { tau: at("tau").value, draft: at("draft").value }); });
at("show-map").addEventListener("change", drawMap);
at("title").textContent = MODEL.name;
at("how").textContent = PAIR ? "Steer with the arrow keys, with W A S D, or by pressing on the frame. Without a key the action is zero." : MODEL.words ? `${MODEL.words}; without a key the robot rests.` : "Each slider sets one number of the action.";
at("footer").textContent = `fastcar ${DATA.version}. The address works only on this machine. Ctrl-C in the terminal ends fastcar and saves the session.`;
follow();
