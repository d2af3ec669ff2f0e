"use strict";
/* Data, words and small makers shared by all parts of the page. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const VIDEOS = JSON.parse(document.getElementById("video-data").textContent);
const NS = "http://www.w3.org/2000/svg";

/** An HTML element. Strings become text nodes, never markup. */
function h(tag, attrs = {}, ...children) {
  return fill(document.createElement(tag), attrs, children);
}
/** An SVG element. */
function s(tag, attrs = {}, ...children) {
  return fill(document.createElementNS(NS, tag), attrs, children);
}
function fill(node, attrs, children) {
  for (const [key, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const at = (id) => document.getElementById(id);

const has = (v) => v !== null && v !== undefined;
const fixed = (digits) => (v) => (v === Infinity ? "∞" : has(v) ? v.toFixed(digits).replace("-", "−") : "–");
const percent = (v) => (has(v) ? `${(100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %` : "–");
const times = (v) => (has(v) ? `${v.toFixed(2)}×` : "–");
const whole = (v) => (has(v) ? Math.round(v).toLocaleString("en-US") : "–");
const short = (v) => (has(v) ? Number(v.toPrecision(3)).toLocaleString("en-US", { maximumSignificantDigits: 3 }) : "–");
const megabytes = (n) => (n < 1e6 ? `${Math.max(1, Math.round(n / 1e3))} kB` : `${(n / 1e6).toFixed(1)} MB`);

/** A threshold as people write it. */
const KEPT = "ratio ";
const tauText = (tau) => (!has(tau) || tau === PLAIN ? "off" : String(tau).startsWith(KEPT) ? percent(Number(tau.slice(KEPT.length))) : tau === "-inf" ? "−∞" : tau === "inf" ? "∞" : String(tau).replace("-", "−"));
const tauNumber = (tau) => (!has(tau) || tau === PLAIN || tau === "inf" ? Infinity : String(tau).startsWith(KEPT) ? -Number(tau.slice(KEPT.length)) : tau === "-inf" ? -Infinity : Number(tau));
const levelText = (tau) => (has(tau) && String(tau).startsWith(KEPT) ? `ratio ${tauText(tau)}` : `tau ${tauText(tau)}`);
const windowText = (w) => (has(w) ? String(w) : "off");
const settingKey = (c) => JSON.stringify([c.tau ?? null, c.window ?? null, c.gate ?? null, c.backend ?? null, c.score ?? null, c.draft ?? null]);
const seriesKey = (c) => JSON.stringify([c.window ?? null, c.gate ?? null, c.backend ?? null, c.score ?? null, c.draft ?? null]);
// A ratio that was kept is shown instead of a threshold, as "ratio 0.8".
for (const x of [...DATA.cells, ...DATA.summary, ...(DATA.knee || [])]) if (has(x.ratio)) x.tau = KEPT + x.ratio;
// Drafts without replay are no reference, though their level is off.
const PLAIN = "off", drafted = (x) => has(x.draft) && x.draft !== "off";
for (const x of [...DATA.cells, ...DATA.summary]) if (!has(x.tau) && drafted(x)) x.tau = PLAIN;

/** What an axis or a column can show. `ideal` is the dense video's own value. */
const METRICS = [
  { key: "ssim", label: "SSIM", higher: true, ideal: 1, show: fixed(4) },
  { key: "psnr_db", label: "PSNR (dB)", higher: true, ideal: null, show: fixed(2) },
  { key: "ms_ssim", label: "MS-SSIM", higher: true, ideal: 1, show: fixed(4) },
  { key: "temporal", label: "Temporal error (0–255)", brief: "Temporal", higher: false, ideal: 0, show: fixed(2) },
  { key: "lpips", label: "LPIPS", higher: false, ideal: 0, show: fixed(4) },
  { key: "all_right", label: "Prompt all right", brief: "All right", higher: true, ideal: null, show: percent },
];
const COSTS = [
  { key: "speedup", label: "Speed-up against dense", brief: "Speed-up", higher: true, show: times, of: (c) => c.speed?.speedup },
  { key: "decode_s", label: "Decode time (s)", brief: "Decode (s)", higher: false, show: fixed(3), of: (c) => c.speed?.decode_s?.median },
  { key: "replay_ratio", label: "Replayed, of all MLPs", brief: "Replayed", higher: true, show: percent, of: (c) => c.replay?.ratio },
  { key: "eligible_ratio", label: "Replayed, of eligible MLPs", brief: "Of eligible", higher: true, show: percent, of: (c) => c.replay?.eligible_ratio },
  { key: "tokens_per_pass", label: "Tokens a pass", higher: true, show: fixed(2), of: (c) => c.drafts?.tokens_per_pass },
  { key: "cycles", label: "Emulated cycles", brief: "Cycles", higher: false, show: whole, of: (c) => c.fpga?.cycles },
  { key: "energy_j", label: "Emulated energy (J)", brief: "Energy (J)", higher: false, show: short, of: (c) => c.fpga?.energy_j },
];
const metricOf = (cell, metric) =>
  metric.key === "all_right" ? (cell.fidelity ? Number(cell.fidelity.all_right) : null) : cell.metrics ? cell.metrics[metric.key] : cell.tau === null ? metric.ideal : null;
/** A summary row's value; the dense row is its own reference. */
const valueOf = (row, kind) => (has(row[kind.key]) ? row[kind.key] : !has(row.tau) && has(kind.ideal) ? kind.ideal : null);

const CELLS = DATA.cells, SUMMARY = DATA.summary, PLAN = DATA.plan, MODEL = DATA.model;
const ALL = "all settings";
const BY_ID = new Map(CELLS.map((c) => [c.id, c]));
const KNEES = new Map((DATA.knee || []).map((k) => [settingKey(k), k]));
// A dense run has no gate of its own: it begins the curves of all gates.
const CURVED = SUMMARY.some((r) => has(r.tau)) ? SUMMARY.filter((r) => has(r.tau)) : SUMMARY;
const SERIES = [...new Map(CURVED.map((r) => [seriesKey(r), { window: r.window ?? null, gate: r.gate, backend: r.backend, score: r.score ?? null, draft: r.draft ?? null }])).entries()].map(
  ([key, value], i) => ({ key, ...value, color: `var(--s${i % 6})`, shape: ["circle", "square", "diamond", "triangle"][(i >= 6 ? i + 1 : i) % 4] }),
);
const varies = (name) => new Set(CURVED.map((r) => r[name] ?? null)).size > 1;
/** The key of the series that a cell or summary row is shown with. */
function seriesOf(x) {
  if (has(x.tau)) return seriesKey(x);
  return (SERIES.find((z) => z.window === (x.window ?? null) && z.backend === x.backend) || { key: seriesKey(x) }).key;
}
/** What distinguishes a series from the others, in words. */
function seriesText(x, dense = false) {
  const words = [];
  if (varies("window")) words.push(`window ${windowText(x.window)}`);
  if (varies("score") && !dense) words.push(`score ${x.score}`);
  if (varies("gate") && !dense) words.push(`gate ${x.gate}`);
  if (varies("backend")) words.push(x.backend);
  if (varies("draft") && !dense) words.push(drafted(x) ? `drafts ${x.draft}` : "no drafts");
  return words.join(", ") || ALL;
}
function settingText(x) {
  const dense = !has(x.tau), more = seriesText(x, dense);
  return (dense ? "dense" : levelText(x.tau)) + (more === ALL ? "" : `, ${more}`);
}
const USED_METRICS = METRICS.filter((m) => SUMMARY.some((r) => has(r[m.key])));
const USED_COSTS = COSTS.filter((m) => SUMMARY.some((r) => has(r[m.key])));

/** The state of the page: what is looked at. Parts register to be called. */
const STATE = { prompt: null, seed: null, setting: null };
const LISTENERS = [];
function select(change) {
  Object.assign(STATE, change);
  for (const listener of LISTENERS) listener();
}

/** The tooltip: a bold title over pairs of name and value. */
function showTip(x, y, title, pairs) {
  const tip = at("tip");
  tip.replaceChildren(h("b", {}, title), ...pairs.map(([k, v]) => h("div", {}, h("span", {}, k), h("span", {}, v))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(12, x + 14), innerWidth - box.width - 12);
  const top = y + 18 + box.height > innerHeight - 8 ? y - box.height - 14 : y + 18;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}
function hideTip() {
  at("tip").hidden = true;
}

/** A labelled select; `options` are [value, text]. */
function picker(label, options, value, change, className = "field") {
  const box = h("select", { "aria-label": label, onchange: (e) => change(e.target.value) }, options.map(([v, t]) => h("option", { value: v }, t)));
  box.value = value;
  const field = h("label", { class: className }, label, box);
  field.box = box;
  return field;
}
function checkbox(label, checked, change) {
  return h("label", { class: "check" }, h("input", { type: "checkbox", checked, onchange: (e) => change(e.target.checked) }), label);
}
