/* Sortable tables of settings and of videos. */
const SHOWN = 300;

/** A table whose headers sort; `columns` have key, label, of(row), show(value), and text for left-aligned ones. */
function sortable(id, caption, columns, rows, options = {}) {
  const state = { column: columns.find((c) => c.key === options.sort) || null, down: false, rows, all: false };
  const heads = columns.map((column) => {
    const th = h("th", { scope: "col", class: column.text ? "text" : null, "aria-sort": "none", "data-key": column.key });
    th.append(column.of ? h("button", {
      type: "button", title: column.help,
      onclick: () => {
        state.down = state.column === column ? !state.down : Boolean(column.down);
        state.column = column;
        draw();
      },
    }, column.label) : column.label);
    return th;
  });
  const body = h("tbody"), table = h("table", { class: "data", id }, h("caption", { hidden: true }, caption), h("thead", {}, h("tr", {}, heads)), body);
  const compare = (a, b) => (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b);
  function draw() {
    let order = state.rows.slice();
    if (state.column) {
      const { of } = state.column;
      // Values that do not exist come last, whichever way it is sorted.
      order.sort((p, q) => {
        const a = of(p), b = of(q);
        if (!has(a) || !has(b)) return Number(!has(a)) - Number(!has(b));
        return a === b ? 0 : compare(a, b) * (state.down ? -1 : 1);
      });
    }
    heads.forEach((th, i) => th.setAttribute("aria-sort", columns[i] === state.column ? (state.down ? "descending" : "ascending") : "none"));
    const visible = state.all ? order : order.slice(0, SHOWN);
    body.replaceChildren(...visible.map((row) => h("tr", { class: settingKey(row) === STATE.setting && (!row.id || row.id === PLAYER.cell?.id) ? "on" : null },
      columns.map((column) => h("td", { class: [column.text ? "text" : "", column.key === "prompt" ? "prompt" : ""].join(" ").trim() || null }, column.cell ? column.cell(row) : column.show(column.of(row), row))))));
    options.count?.(visible.length, order.length);
  }
  return { table, draw, filter: (rows_) => { state.rows = rows_; draw(); }, showAll: () => { state.all = true; draw(); } };
}

const settingColumns = () => [
  { key: "tau", label: "tau", of: (r) => tauNumber(r.tau), down: true, text: true, cell: (r) => [tauText(r.tau), KNEES.has(settingKey(r)) && has(r.tau) ? h("span", { class: "tag" }, "knee") : null].filter(Boolean) },
  varies("score") && { key: "score", label: "Score", text: true, of: (r) => (has(r.tau) ? r.score : null), show: (v) => v ?? "–" },
  varies("window") && { key: "window", label: "Window", of: (r) => (has(r.window) ? r.window : Infinity), show: (v, r) => windowText(r.window) },
  varies("gate") && { key: "gate", label: "Gate", text: true, of: (r) => (has(r.tau) ? r.gate : null), show: (v) => v ?? "–" },
  varies("draft") && { key: "draft", label: "Drafts", text: true, of: (r) => r.draft, show: (v) => v ?? "–" },
  varies("backend") && { key: "backend", label: "Backend", text: true, of: (r) => r.backend, show: String },
];

function startTables() {
  const numbers = (kinds, read) => kinds.map((k) => ({ key: k.key, label: k.brief || k.label, help: k.label, down: k.higher, of: (r) => read(r, k), show: k.show }));
  const summary = sortable("settings-table", "All settings", [
    { key: "watch", label: "", text: true, cell: (r) => h("button", { type: "button", "aria-label": `Watch ${settingText(r)}`, onclick: () => { chooseSetting(r); at("watch").scrollIntoView({ block: "start" }); } }, "Watch") },
    ...settingColumns(),
    { key: "videos", label: "Videos", of: (r) => r.videos, show: whole, down: true },
    ...numbers([...USED_COSTS, ...USED_METRICS], (r, k) => (k.key === "psnr_db" && has(r.tau) && r.psnr_db === null ? Infinity : valueOf(r, k))),
    SUMMARY.some((r) => has(r.fidelity_drop)) && { key: "fidelity_drop", label: "Drop", help: "How much less often all is right than dense", of: (r) => r.fidelity_drop, show: percent },
  ].filter(Boolean), SUMMARY);
  at("settings").append(summary.table);

  const cells = sortable("videos-table", "All videos", [
    { key: "watch", label: "", text: true, cell: (c) => h("button", { type: "button", "aria-label": `Watch ${c.prompt}, seed ${c.seed}, ${settingText(c)}`, onclick: () => chooseCell(c) }, VIDEOS[c.id] ? "Watch" : "Show") },
    { key: "prompt", label: "Prompt", text: true, of: (c) => c.prompt, show: String },
    { key: "seed", label: "Seed", of: (c) => c.seed, show: String },
    ...settingColumns(),
    ...numbers(USED_COSTS.filter((k) => CELLS.some((c) => has(k.of(c)))), (c, k) => k.of(c)),
    { key: "spread", label: "Spread (s)", help: "Fastest and slowest decode", of: (c) => (c.speed?.decode_s ? c.speed.decode_s.max - c.speed.decode_s.min : null), show: (v, c) => (has(v) && c.speed.decode_s.runs?.length > 1 ? `${fixed(2)(c.speed.decode_s.min)}–${fixed(2)(c.speed.decode_s.max)}` : "–") },
    ...numbers(USED_METRICS.filter((k) => k.key !== "all_right"), (c, k) => (k.key === "psnr_db" && c.metrics && c.metrics.psnr_db === null ? Infinity : metricOf(c, k))),
    CELLS.some((c) => c.fidelity) && { key: "right", label: "All right", of: (c) => (c.fidelity ? Number(c.fidelity.all_right) : null), down: true, cell: (c) => (c.fidelity ? h("span", { class: c.fidelity.all_right ? "yes" : "no" }, c.fidelity.all_right ? "✓ yes" : "✗ no") : "–") },
  ].filter(Boolean), CELLS, {
    count: (visible, total) => {
      more.hidden = visible >= total;
      at("videos-note").textContent = visible < total ? `${visible} of ${total} videos shown.` : `${total} video${total === 1 ? "" : "s"}.`;
    },
  });
  const more = h("button", { type: "button", hidden: true, onclick: () => cells.showAll() }, "Show all");
  const search = h("input", { type: "search", id: "filter", placeholder: "part of a prompt", oninput: () => filter() });
  const filter = () => cells.filter(CELLS.filter((c) => c.prompt.toLowerCase().includes(search.value.trim().toLowerCase())));
  at("videos-controls").append(h("label", { class: "field grow" }, "Filter by prompt", search), more);
  at("videos").append(cells.table);
  summary.draw();
  cells.draw();
  LISTENERS.push(summary.draw, cells.draw);
}
