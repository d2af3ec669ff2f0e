"use strict";
/* Data, formats and helpers that all parts of the page share. */
const at = (id) => document.getElementById(id);
const DATA = JSON.parse(at("data").textContent), VIDEOS = JSON.parse(at("video-data").textContent);
const { cells: CELLS, summary: SUMMARY, model: MODEL } = DATA;

/** An HTML element. Strings become text nodes, never markup. */
const h = (tag, attrs = {}, ...children) => fill(document.createElement(tag), attrs, children);
/** An SVG element. */
const s = (tag, attrs = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attrs, children);
function fill(node, attrs, children) {
  for (const [key, value] of Object.entries(attrs)) {
    if (!has(value) || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(has));
  return node;
}

/** Show text in an element; hide the element if the text is empty. */
const show = (id, text) => Object.assign(at(id), { textContent: text, hidden: !text });
const has = (v) => v !== null && v !== undefined;
const fixed = (digits) => (v) => (has(v) ? v.toFixed(digits).replace("-", "−") : "–");
const percent = (v) => (has(v) ? `${(100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %` : "–");
const times = (v) => (has(v) ? `${v.toFixed(2)}×` : "–");
const short = (v) => (has(v) ? Number(v.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 }) : "–");
const megabytes = (n) => (n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} kB` : `${(n / 1e6).toFixed(1)} MB`);

/* Settings: a dense cell or line has no threshold, no ratio and no drafts. */
const AXES = ["score", "window", "gate", "backend", "draft"];
const drafted = (x) => has(x.draft) && x.draft !== "off";
const dense = (x) => !has(x.tau) && !has(x.ratio) && !drafted(x);
const tauText = (tau) => (has(tau) ? String(tau).replace("inf", "∞").replaceAll("-", "−") : "off");
const levelText = (x) => (has(x.ratio) ? `ratio ${percent(x.ratio)}` : `tau ${tauText(x.tau)}`);
const settingKey = (x) => JSON.stringify(["tau", "ratio", ...AXES].map((name) => x[name] ?? null));
const CURVED = SUMMARY.filter((row) => !dense(row));
const varies = (name) => new Set(CURVED.map((row) => row[name] ?? null)).size > 1;
/** A setting's values on axes with several values. Gate, score and drafts have no effect in a dense cell. */
function axesText(x) {
  const names = AXES.filter((name) => varies(name) && (!dense(x) || name === "window" || name === "backend"));
  return names.map((name) => (name === "backend" ? x.backend : `${name} ${x[name] ?? "off"}`)).join(", ");
}
const settingText = (x) => [dense(x) ? "dense" : levelText(x), axesText(x)].filter(Boolean).join(", ");

/** Quantities for axes of the chart and columns of the table. `ideal`: the value of the dense video. */
const METRICS = [
  { key: "ssim", label: "SSIM", higher: true, ideal: 1, show: fixed(4) },
  { key: "psnr_db", label: "PSNR (dB)", higher: true, show: fixed(2) },
  { key: "ms_ssim", label: "MS-SSIM", higher: true, ideal: 1, show: fixed(4) },
  { key: "temporal", label: "Temporal error (0–255)", higher: false, ideal: 0, show: fixed(2) },
  { key: "lpips", label: "LPIPS", higher: false, ideal: 0, show: fixed(4) },
  { key: "all_right", label: "Prompt all right", higher: true, show: percent },
].filter((kind) => SUMMARY.some((row) => has(row[kind.key])));
const COSTS = [
  { key: "speedup", label: "Speed-up", higher: true, show: times },
  { key: "decode_s", label: "Decode time (s)", higher: false, show: fixed(3) },
  { key: "replay_ratio", label: "Replayed, of all MLPs", higher: true, show: percent },
  { key: "eligible_ratio", label: "Replayed, of eligible MLPs", higher: true, show: percent },
  { key: "tokens_per_pass", label: "Tokens per pass", higher: true, show: fixed(2) },
  { key: "cycles", label: "Emulated cycles", higher: false, show: short },
  { key: "energy_j", label: "Emulated energy (J)", higher: false, show: short },
].filter((kind) => SUMMARY.some((row) => has(row[kind.key])));
const valueOf = (row, kind) => row[kind.key] ?? (dense(row) ? kind.ideal : null);
const KNEES = new Set((DATA.knee || []).map(settingKey));
const knownText = (x) => settingText(x) + (KNEES.has(settingKey(x)) ? " (knee)" : "");

/** The selected prompt, seed and setting; parts of the page register listeners for changes. */
const STATE = { prompt: null, seed: null, setting: null };
const LISTENERS = [];
function select(change) {
  Object.assign(STATE, change);
  for (const listener of LISTENERS) listener();
}
const watch = (cell) => select({ prompt: cell.prompt, seed: cell.seed, setting: settingKey(cell) });
const cellsNow = () => CELLS.filter((c) => c.prompt === STATE.prompt && c.seed === STATE.seed);

/** A labelled select; `options` are [value, text]. */
function picker(label, options, value, change, className = "field") {
  const list = options.map(([v, text]) => h("option", { value: v, selected: v === value }, text));
  return h("label", { class: className }, label, h("select", { "aria-label": label, onchange: (e) => change(e.target.value) }, list));
}
