"use strict";
/* The tokens that a gate got wrong: pictures with two maps over them, and a table of all settings. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const CELLS = DATA.cells, CHANGED = [225, 29, 72], STILL = [8, 145, 178];
const at = (id) => document.getElementById(id);
const has = (v) => v !== null && v !== undefined;
const percent = (v) => `${(100 * v).toFixed(1)} %`;
function h(tag, attrs = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (has(value) && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity));
  return node;
}
const level = (c) => (has(c.ratio) ? `ratio ${c.ratio}` : `tau ${String(c.tau).replace("-inf", "−∞").replace("-", "−")}`);
const varies = (key) => new Set(CELLS.map((c) => c[key])).size > 1;
const setting = (c) => [c.score, level(c), ...["window", "gate", "backend"].filter(varies).map((k) => `${k} ${c[k] ?? "off"}`)].join(", ");
const mean = (values) => values.flat(2).reduce((a, b) => a + b, 0) / Math.max(1, values.flat(2).length);
/** Of the eligible decisions: all frames but the first. */
const wrong = (c) => mean(c.changed.slice(1)) + mean(c.still.slice(1));

const STATE = { prompt: CELLS[0].prompt, seed: CELLS[0].seed, setting: setting(CELLS[0]), changed: true, still: true };
const of = () => CELLS.filter((c) => c.prompt === STATE.prompt && c.seed === STATE.seed);
const current = () => of().find((c) => setting(c) === STATE.setting) || of()[0];

function picker(label, values, value, change, grow) {
  const box = h("select", { "aria-label": label, onchange: (e) => change(values[Number(e.target.value)]) },
    values.map((v, i) => h("option", { value: String(i), selected: v === value }, String(v))));
  return h("label", { class: grow ? "field grow" : "field" }, label, box);
}
function toggle(key, label) {
  const box = h("input", { type: "checkbox", checked: STATE[key], onchange: (e) => { STATE[key] = e.target.checked; draw(); } });
  return h("label", { class: "check" }, box, label);
}
function choose(change) {
  Object.assign(STATE, change);
  if (!of().length) STATE.seed = CELLS.find((c) => c.prompt === STATE.prompt).seed;
  STATE.setting = setting(current());
  pick();
  draw();
}
function pick() {
  const unique = (values) => [...new Set(values)];
  at("pick").replaceChildren(
    picker("Prompt", unique(CELLS.map((c) => c.prompt)), STATE.prompt, (prompt) => choose({ prompt }), true),
    picker("Seed", unique(CELLS.filter((c) => c.prompt === STATE.prompt).map((c) => c.seed)), STATE.seed, (seed) => choose({ seed })),
    picker("Setting", of().map(setting), STATE.setting, (s) => choose({ setting: s }), true),
    toggle("changed", "replayed though changed"), toggle("still", "computed though still"));
}

/** Both maps of a frame as a small picture, one pixel a place. */
function overlay(cell, t) {
  const rows = cell.changed[t].length, columns = cell.changed[t][0].length;
  const canvas = h("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const a = STATE.changed ? cell.changed[t][Math.floor(i / columns)][i % columns] : 0;
    const b = STATE.still ? cell.still[t][Math.floor(i / columns)][i % columns] : 0;
    const color = [0, 1, 2].map((k) => (a + b ? (a * CHANGED[k] + b * STILL[k]) / (a + b) : 0));
    image.data.set([...color, 255 * Math.min(1, 1.5 * (a + b))], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
function draw() {
  const cell = current();
  at("summary").textContent = `${percent(cell.replayed_ratio)} of all MLPs replayed; ${percent(wrong(cell))} of the eligible decisions differ from the ideal gate's, ${percent(cell.chance)} would by chance.`;
  at("film").replaceChildren(...cell.frames.map((png, t) => h("figure", {},
    h("div", { class: "frame" }, h("img", { alt: `frame ${t + 1}`, src: `data:image/png;base64,${png}` }), overlay(cell, t)),
    h("figcaption", {}, t ? `frame ${t + 1}: ${percent(mean(cell.changed[t]))} | ${percent(mean(cell.still[t]))}` : "frame 1: computed"))));
}
function table() {
  const groups = new Map();
  for (const c of CELLS) groups.set(setting(c), [...(groups.get(setting(c)) || []), c]);
  const head = ["setting", "videos", "replayed", "wrong", "by chance"].map((t, i) => h("th", { scope: "col", class: i ? null : "text" }, t));
  const lines = [...groups].map(([name, cells]) => [name, cells.length, mean(cells.map((c) => c.replayed_ratio)), mean(cells.map(wrong)), mean(cells.map((c) => c.chance))]);
  const body = lines.map(([name, n, ...shares]) => h("tr", {}, h("td", { class: "text" }, name), h("td", {}, String(n)), shares.map((v) => h("td", {}, percent(v)))));
  at("all").replaceChildren(h("table", { class: "data" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}
const left = DATA.total - CELLS.length;
at("footer").textContent = `${CELLS.length} of ${DATA.total} videos are in this file${left ? "; the data of the others is in cells/*.tokens.npz" : ""}. Written by fastcar ${DATA.version}; nothing is loaded from a network.`;
pick();
draw();
table();
