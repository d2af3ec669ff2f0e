/* The plot of quality against speed. */
const TRADE = { x: (USED_COSTS[0] || COSTS[0]).key, y: (USED_METRICS[0] || METRICS[0]).key, videos: false };

/** Round numbers that cover [low, high]. */
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((v) => v >= raw) || raw;
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return { values: found, digits: Math.max(0, Math.min(6, Math.ceil(-Math.log10(step) + (step / power === 2.5 ? 1 : 0) - 1e-9))) };
}
function marker(shape, x, y, r, attrs) {
  if (shape === "square") return s("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, ...attrs });
  if (shape === "diamond") return s("path", { d: `M${x} ${y - 1.3 * r}L${x + 1.3 * r} ${y}L${x} ${y + 1.3 * r}L${x - 1.3 * r} ${y}Z`, ...attrs });
  if (shape === "triangle") return s("path", { d: `M${x} ${y - 1.2 * r}L${x + 1.2 * r} ${y + r}L${x - 1.2 * r} ${y + r}Z`, ...attrs });
  return s("circle", { cx: x, cy: y, r, ...attrs });
}

/** Points that no other point beats in one value without losing in the other. */
function paretoFront(points, xKind, yKind) {
  const better = (a, b, kind) => (kind.higher ? a > b : a < b);
  return new Set(points.filter((p) => !points.some((q) =>
    (better(q.x, p.x, xKind) && !better(p.y, q.y, yKind)) || (better(q.y, p.y, yKind) && !better(p.x, q.x, xKind)))));
}

function drawTrade() {
  const box = at("trade"), width = Math.max(280, box.clientWidth), small = width < 520;
  const height = Math.round(Math.min(440, Math.max(290, width * 0.5)));
  const xKind = COSTS.find((k) => k.key === TRADE.x), yKind = METRICS.find((k) => k.key === TRADE.y);
  const points = SUMMARY.map((row) => ({ row, x: valueOf(row, xKind), y: valueOf(row, yKind) })).filter((p) => has(p.x) && has(p.y));
  const hidden = SUMMARY.filter((r) => has(r.tau) && !points.some((p) => p.row === r)).length;
  const dots = TRADE.videos ? CELLS.map((c) => ({ c, x: xKind.of(c), y: metricOf(c, yKind) })).filter((p) => has(p.x) && has(p.y)) : [];
  if (!points.length) {
    box.replaceChildren(h("p", { class: "note" }, "There is nothing to plot for this choice."));
    return;
  }
  const m = { left: small ? 50 : 60, right: small ? 14 : 28, top: 34, bottom: 50 };
  const scale = (values, kind, from, to) => {
    let low = Math.min(...values), high = Math.max(...values);
    const pad = high > low ? (high - low) * 0.09 : Math.abs(high) * 0.05 || 0.5;
    low -= pad; high += pad;
    const [a, b] = kind.higher ? [from, to] : [to, from];
    return { low, high, map: (v) => a + ((v - low) / (high - low)) * (b - a) };
  };
  const all = [...points, ...dots];
  const x = scale(all.map((p) => p.x), xKind, m.left, width - m.right);
  const y = scale(all.map((p) => p.y), yKind, height - m.bottom, m.top);
  const root = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": `${yKind.label} against ${xKind.label}` });
  const asPercent = (kind) => kind.show === percent;
  const label = (kind, v, digits) => (asPercent(kind) ? `${Math.round(100 * v)} %` : kind.key === "cycles" ? short(v / 1e6) + " M" : v.toFixed(digits).replace("-", "−"));
  const yTicks = ticks(y.low, y.high, small ? 4 : 6);
  for (const v of yTicks.values) {
    if (TRADE.y !== "psnr_db" && TRADE.y !== "temporal" && v > 1.0000001) continue;
    root.append(s("line", { class: "grid", x1: m.left, x2: width - m.right, y1: y.map(v), y2: y.map(v) }),
      s("text", { x: m.left - 9, y: y.map(v) + 4, "text-anchor": "end" }, label(yKind, v, yTicks.digits)));
  }
  const xTicks = ticks(x.low, x.high, small ? 4 : 8);
  for (const v of xTicks.values) {
    root.append(s("line", { class: "grid", x1: x.map(v), x2: x.map(v), y1: height - m.bottom, y2: height - m.bottom + 5 }),
      s("text", { x: x.map(v), y: height - m.bottom + 20, "text-anchor": "middle" }, label(xKind, v, xTicks.digits)));
  }
  root.append(s("line", { class: "axis", x1: m.left, x2: width - m.right, y1: height - m.bottom, y2: height - m.bottom }));
  const way = (kind) => (kind.higher ? "" : " (less is better)"), name = (kind) => (small && kind.brief) || kind.label;
  root.append(s("text", { class: "strong", x: 0, y: 14 }, `↑ ${name(yKind)}${way(yKind)}`),
    s("text", { class: "strong", x: width - m.right, y: height - 8, "text-anchor": "end" }, `${name(xKind)}${way(xKind)} →`));
  for (const p of dots) {
    const series = SERIES.find((z) => z.key === seriesOf(p.c));
    if (series) root.append(s("circle", { cx: x.map(p.x), cy: y.map(p.y), r: 2.5, fill: series.color, opacity: 0.3 }));
  }
  const front = paretoFront(points, xKind, yKind), taken = points.map((p) => {
    const r = KNEES.get(settingKey(p.row)) ? 13 : settingKey(p.row) === STATE.setting ? 14 : 8;
    return { x: x.map(p.x) - r, y: y.map(p.y) - r, w: 2 * r, h: 2 * r };
  });
  const labels = s("g", { "aria-hidden": "true" });
  for (const series of SERIES) {
    const line = points.filter((p) => (has(p.row.tau) ? seriesKey(p.row) === series.key : (p.row.window ?? null) === series.window && p.row.backend === series.backend)).sort((a, b) => tauNumber(b.row.tau) - tauNumber(a.row.tau));
    // Thresholds and kept ratios are two curves, which both begin where all is dense.
    for (const kept of [false, true]) {
      const curve = line.filter((p) => !has(p.row.tau) || String(p.row.tau).startsWith(KEPT) === kept);
      if (curve.some((p) => has(p.row.tau)) && curve.length > 1) root.append(s("polyline", { points: curve.map((p) => `${x.map(p.x)},${y.map(p.y)}`).join(" "), fill: "none", stroke: series.color, "stroke-width": 1.5, opacity: 0.45 }));
    }
  }
  for (const p of [...points].sort((a, b) => tauNumber(b.row.tau) - tauNumber(a.row.tau))) {
    const series = SERIES.find((z) => z.key === seriesOf(p.row)), knee = KNEES.get(settingKey(p.row));
    const px = x.map(p.x), py = y.map(p.y), on = settingKey(p.row) === STATE.setting;
    const about = [[xKind.brief || xKind.label, xKind.show(p.x)], [yKind.brief || yKind.label, yKind.show(p.y)]];
    for (const kind of [...USED_COSTS, ...USED_METRICS]) {
      if (kind !== xKind && kind !== yKind && has(valueOf(p.row, kind))) about.push([kind.brief || kind.label, kind.show(valueOf(p.row, kind))]);
    }
    if (has(p.row.videos)) about.push(["videos", String(p.row.videos)]);
    for (const q of points) {
      if (q !== p && Math.hypot(x.map(q.x) - px, y.map(q.y) - py) < 7) about.push(["also here", settingText(q.row)]);
    }
    const title = settingText(p.row) + (knee ? " (knee)" : "");
    const show = (e) => {
      const r = e.currentTarget.querySelector(".hit").getBoundingClientRect();
      showTip(r.left + r.width / 2, r.top + r.height / 2, title, about);
    };
    root.append(s("g", {
      class: `point${on ? " on" : ""}`, tabindex: 0, role: "button", "data-setting": settingKey(p.row),
      "aria-label": `${title}: ${about.map((a) => a.join(" ")).join(", ")}`,
      onpointerenter: show, onpointermove: show, onfocus: show, onpointerleave: hideTip, onblur: hideTip,
      onclick: () => chooseSetting(p.row),
      onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); chooseSetting(p.row); } if (e.key === "Escape") hideTip(); },
    },
    s("circle", { class: "halo", cx: px, cy: py, r: 14, fill: series.color }),
    knee ? s("circle", { class: "knee-ring", cx: px, cy: py, r: 11, fill: "none", stroke: series.color, "stroke-width": 2 }) : null,
    marker(series.shape, px, py, 5.5, { fill: front.has(p) ? series.color : "var(--bg)", stroke: series.color, "stroke-width": 2 }),
    s("circle", { class: "hit", cx: px, cy: py, r: 17 })));
    const text = (has(p.row.tau) ? tauText(p.row.tau) : "dense") + (knee ? " knee" : ""), w = text.length * 7.6 + 4, r = knee || on ? 16 : 10;
    for (const [dx, dy, anchor] of [[0, -r - 2, "middle"], [r, -6, "start"], [r, 4, "start"], [-r, 15, "end"], [0, r + 12, "middle"], [-r, 4, "end"]]) {
      const left = px + dx - (anchor === "end" ? w : anchor === "middle" ? w / 2 : 0), spot = { x: left, y: py + dy - 12, w, h: 15 };
      const inside = left > m.left && left + w < width - m.right + 12 && spot.y > 18;
      if (inside && !taken.some((q) => q !== taken[points.indexOf(p)] && q.x < spot.x + spot.w && spot.x < q.x + q.w && q.y < spot.y + spot.h && spot.y < q.y + q.h)) {
        taken.push(spot);
        labels.append(s("text", { x: px + dx, y: py + dy, "text-anchor": anchor, class: knee ? "strong" : "" }, text));
        break;
      }
    }
  }
  root.append(labels);
  box.replaceChildren(root);
  if (hidden) box.append(h("p", { class: "sub" }, `${hidden} setting${hidden > 1 ? "s are" : " is"} not shown: ${yKind.key === "psnr_db" ? "identical to dense, so PSNR is infinite" : "no value"}.`));
}

function startTrade() {
  at("trade-controls").append(
    picker("Quality", USED_METRICS.map((k) => [k.key, k.label]), TRADE.y, (v) => { TRADE.y = v; drawTrade(); }),
    picker("Speed", USED_COSTS.map((k) => [k.key, k.label]), TRADE.x, (v) => { TRADE.x = v; drawTrade(); }),
    checkbox("Show each video", false, (v) => { TRADE.videos = v; drawTrade(); }));
  if (SERIES.length > 1) {
    at("trade-legend").append(...SERIES.map((x) => h("span", {}, s("svg", { width: 16, height: 16, style: "width:16px", "aria-hidden": "true" }, marker(x.shape, 8, 8, 5, { fill: x.color })), seriesText(x))));
  }
  at("why").append(...(DATA.knee || []).map((k) => h("li", {}, h("b", {}, `Knee at ${settingText(k)}`), k.why ? `: ${k.why}` : "")), ...(DATA.inert || []).map((k) => h("li", {}, h("strong", {}, "Inert threshold"), `: ${k.why}`)));
  new ResizeObserver(drawTrade).observe(at("trade"));
  LISTENERS.push(drawTrade);
  drawTrade();
}
