/* Quality against speed: a point per setting, a line per curve. */
const SHOWN = { x: COSTS[0], y: METRICS[0] };
const CHART_HEIGHT = 380, MARGIN = { left: 60, right: 24, top: 34, bottom: 50 };

/** A scale of values to pixels that grows towards better values, and round numbers on it. */
function scale(values, kind, from, to) {
  let low = Math.min(...values), high = Math.max(...values);
  const pad = high > low ? (high - low) * 0.09 : Math.abs(high) * 0.05 || 0.5;
  low -= pad; high += pad;
  const [a, b] = kind.higher ? [from, to] : [to, from];
  const power = 10 ** Math.floor(Math.log10((high - low) / 4));
  const step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= (high - low) / 4);
  const first = Math.ceil(low / step), ticks = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  return { map: (v) => a + ((v - low) / (high - low)) * (b - a), ticks };
}

/** Curves of summary lines that differ only in tau or ratio, each with the dense line to compare with. */
function curves() {
  const found = new Map();
  for (const row of CURVED) {
    const key = JSON.stringify([has(row.ratio), ...AXES.map((name) => row[name] ?? null)]);
    if (!found.has(key)) found.set(key, SUMMARY.filter((d) => dense(d) && (d.window ?? null) === (row.window ?? null) && d.backend === row.backend));
    found.get(key).push(row);
  }
  return [...found.values()].map((rows, i) => ({ rows, color: `var(--s${i % 6})` }));
}

/** Whether no other point is better in one value and as good in the other. */
function onFront(p, points) {
  const gain = (q, axis) => (q[axis] - p[axis]) * (SHOWN[axis].higher ? 1 : -1);
  return !points.some((q) => Math.min(gain(q, "x"), gain(q, "y")) >= 0 && Math.max(gain(q, "x"), gain(q, "y")) > 0);
}

function drawChart() {
  const box = at("trade"), width = Math.max(280, box.clientWidth), bottom = CHART_HEIGHT - MARGIN.bottom;
  const points = SUMMARY.map((row) => ({ row, x: valueOf(row, SHOWN.x), y: valueOf(row, SHOWN.y) })).filter((p) => has(p.x) && has(p.y));
  if (!points.length) return box.replaceChildren(h("p", { class: "note" }, "There is nothing to plot for this choice."));
  const x = scale(points.map((p) => p.x), SHOWN.x, MARGIN.left, width - MARGIN.right);
  const y = scale(points.map((p) => p.y), SHOWN.y, bottom, MARGIN.top);
  const root = s("svg", { viewBox: `0 0 ${width} ${CHART_HEIGHT}`, height: CHART_HEIGHT, role: "group", "aria-label": `${SHOWN.y.label} against ${SHOWN.x.label}` });
  for (const v of y.ticks) {
    root.append(s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y.map(v), y2: y.map(v) }),
      s("text", { x: MARGIN.left - 9, y: y.map(v) + 4, "text-anchor": "end" }, SHOWN.y.show(v)));
  }
  for (const v of x.ticks) root.append(s("text", { x: x.map(v), y: bottom + 20, "text-anchor": "middle" }, SHOWN.x.show(v)));
  const name = (kind) => kind.label + (kind.higher ? "" : " (less is better)");
  root.append(s("text", { class: "strong", x: 0, y: 14 }, `↑ ${name(SHOWN.y)}`),
    s("text", { class: "strong", x: width - MARGIN.right, y: CHART_HEIGHT - 8, "text-anchor": "end" }, `${name(SHOWN.x)} →`));
  const colors = new Map(), taken = points.map((p) => [x.map(p.x), y.map(p.y), 18, 18]);
  for (const { rows, color } of curves()) {
    const line = rows.map((row) => points.find((p) => p.row === row)).filter(Boolean);
    root.append(s("polyline", { points: line.map((p) => `${x.map(p.x)},${y.map(p.y)}`).join(" "), stroke: color }));
    for (const p of line) if (!colors.has(p)) colors.set(p, color);
  }
  for (const p of points) {
    const key = settingKey(p.row), [px, py] = [x.map(p.x), y.map(p.y)], knee = KNEES.has(key), color = colors.get(p) || "var(--s0)";
    const title = knownText(p.row);
    const about = [...COSTS, ...METRICS].map((kind) => `${kind.label} ${kind.show(valueOf(p.row, kind))}`);
    const choose = () => chooseSetting(p.row);
    root.append(s("g", {
      class: `point${key === STATE.setting ? " on" : ""}`, tabindex: 0, role: "button", "data-setting": key, "aria-label": `${title}: ${about.join(", ")}`,
      onclick: choose, onkeydown: (e) => { if (e.key === "Enter") choose(); },
    },
    s("title", {}, [title, ...about].join("\n")),
    s("circle", { class: "halo", cx: px, cy: py, r: 14, fill: color }),
    knee ? s("circle", { class: "knee-ring", cx: px, cy: py, r: 11, stroke: color }) : null,
    s("circle", { class: "dot", cx: px, cy: py, r: 5.5, fill: onFront(p, points) ? color : "var(--bg)", stroke: color })));
    const text = dense(p.row) ? "dense" : has(p.row.ratio) ? percent(p.row.ratio) : tauText(p.row.tau), across = text.length * 8 + 4;
    // A label that would overlap another one or a point is left out; the point's title has the same text.
    const free = [[px, py - 22], [px, py + 24]].find(([u, v]) => taken.every(([a, b, w, t]) => 2 * Math.abs(a - u) > w + across || 2 * Math.abs(b - v) > t + 16));
    if (!free) continue;
    taken.push([...free, across, 16]);
    root.append(s("text", { class: "label", x: free[0], y: free[1] + 4, "text-anchor": "middle" }, text));
  }
  box.replaceChildren(root);
  const hidden = CURVED.filter((row) => !points.some((p) => p.row === row)).length;
  if (hidden) box.append(h("p", { class: "sub" }, `Not shown: ${hidden} setting${hidden === 1 ? "" : "s"} without a value (the PSNR of identical videos is infinite).`));
}

function startChart() {
  const pick = (label, kinds, axis) => picker(label, kinds.map((k) => [k.key, k.label]), SHOWN[axis]?.key, (v) => {
    SHOWN[axis] = kinds.find((k) => k.key === v);
    drawChart();
  });
  at("trade-controls").append(pick("Quality", METRICS, "y"), pick("Speed", COSTS, "x"));
  const drawn = curves();
  if (drawn.length > 1) {
    at("trade-legend").append(...drawn.map(({ rows, color }) => h("span", {}, h("i", { style: `background:${color}` }),
      [has(rows.at(-1).ratio) ? "replay ratios" : "thresholds", axesText(rows.at(-1))].filter(Boolean).join(", "))));
  }
  at("why").append(...(DATA.knee || []).map((k) => h("li", {}, h("b", {}, `Knee at ${settingText(k)}`), `: ${k.why}`)),
    ...(DATA.inert || []).map((k) => h("li", {}, h("b", {}, "Inert threshold"), `: ${k.why}`)));
  if (!METRICS.length) return at("trade").append(h("p", { class: "note" }, "No metric was measured."));
  new ResizeObserver(drawChart).observe(at("trade"));
  LISTENERS.push(drawChart);
}
