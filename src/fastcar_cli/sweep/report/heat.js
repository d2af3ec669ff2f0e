/* Replay by layer and by frame, as tables of coloured cells. */
const WHERE = { series: SERIES[0]?.key };

/** The colour that a custom property has now, as [r, g, b]. */
function rgb(name) {
  const value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
}
const luminance = (c) => {
  const [r, g, b] = c.map((v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
/** Background of a share and black or white on it, whichever reads better. */
function shade(share) {
  const from = rgb("--panel"), to = rgb("--replay");
  const mixed = from.map((v, i) => Math.round(v + (to[i] - v) * Math.min(1, Math.max(0, share))));
  return { background: `rgb(${mixed.join(" ")})`, ink: luminance(mixed) > 0.179 ? "#000" : "#fff" };
}

/** Mean over cells of one list of each, place by place. */
function meanOf(cells, name) {
  const lists = cells.map((c) => c.replay?.[name]).filter((l) => Array.isArray(l) && l.length);
  const length = Math.max(0, ...lists.map((l) => l.length));
  return Array.from({ length }, (_, i) => {
    const values = lists.map((l) => l[i]).filter(has);
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
  });
}

function heatTable(name, word, offset) {
  const rows = SUMMARY.filter((r) => seriesKey(r) === WHERE.series && has(r.tau)).sort((a, b) => tauNumber(b.tau) - tauNumber(a.tau));
  const values = rows.map((r) => meanOf(CELLS.filter((c) => settingKey(c) === settingKey(r)), name));
  const columns = Math.max(0, ...values.map((v) => v.length));
  if (!columns) return h("p", { class: "sub" }, "No setting replayed.");
  const head = h("tr", {}, h("th", { scope: "col" }, `tau \\ ${word}`),
    Array.from({ length: columns }, (_, i) => h("th", { scope: "col" }, columns > 16 && (i + offset) % 4 ? "" : String(i + offset))));
  const body = rows.map((row, k) => h("tr", { class: settingKey(row) === STATE.setting ? "on" : null },
    h("th", { scope: "row" }, tauText(row.tau)),
    Array.from({ length: columns }, (_, i) => {
      const v = values[k][i], { background, ink } = shade(v || 0);
      const tip = (e) => showTip(e.clientX, e.clientY, `${levelText(row.tau)}, ${word} ${i + offset}`, [["replayed", percent(v)]]);
      return h("td", { style: `background:${background};color:${ink}`, "aria-label": percent(v), onpointermove: tip, onpointerleave: hideTip },
        has(v) ? String(Math.round(100 * v)) : "");
    })));
  return h("table", { class: `heat${columns > 16 ? " dense-cells" : ""}` }, h("thead", {}, head), h("tbody", {}, body));
}

function drawWhere() {
  at("layers").replaceChildren(heatTable("by_layer", "layer", 1));
  at("frames").replaceChildren(heatTable("by_frame", "frame", 1));
}

function startWhere() {
  if (SERIES.length > 1) {
    at("where-controls").append(picker("Setting", SERIES.map((x) => [x.key, seriesText(x)]), WHERE.series, (v) => { WHERE.series = v; drawWhere(); }));
  } else at("where-controls").remove();
  at("ramp").append("0 %", h("i"), "100 % replayed");
  if ((MODEL.layers || 0) > 16 || (MODEL.frames || 0) > 16) document.querySelector(".pair").classList.add("wide");
  LISTENERS.push(drawWhere);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawWhere(); drawHeat(); });
  drawWhere();
}
