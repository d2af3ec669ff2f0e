/* The headline, the table of settings, the configuration, and the start of all parts. */
/** Whether a setting loses at most 2 % of right videos or, without a judge, has at least SSIM 0.98 or PSNR 40 dB. */
function keepsQuality(row) {
  if (has(row.fidelity_drop)) return row.fidelity_drop <= 0.02;
  if (has(row.ssim)) return row.ssim >= 0.98;
  return row.psnr_db === null || row.psnr_db >= 40;
}

function startTop() {
  const fastest = (rows) => rows.filter((r) => has(r.speedup)).sort((a, b) => b.speedup - a.speedup)[0];
  const good = fastest(CURVED.filter((r) => keepsQuality(r) && r.speedup > 1)), row = good || fastest(CURVED) || CURVED[0];
  at("headline").textContent = !CELLS.length ? "No video is finished yet"
    : !row ? `${MODEL.name}: dense decoding only`
    : !has(row.speedup) ? `${MODEL.name} at ${settingText(row)}`
    : good ? `${MODEL.name} decodes ${times(row.speedup)} as fast as dense at ${settingText(row)}` : `${MODEL.name}: no setting is faster and keeps the quality`;
  if (row) {
    const parts = [`${percent(row.replay_ratio)} of all MLPs replayed`];
    if (has(row.speedup)) parts.push(`speed-up ${times(row.speedup)}`);
    if (has(row.ssim)) parts.push(`SSIM with dense ${fixed(3)(row.ssim)}`);
    if (has(row.all_right)) parts.push(`${percent(row.all_right)} show all that the prompt asks for${has(row.fidelity_drop) ? ` (dense: ${percent(row.all_right + row.fidelity_drop)})` : ""}`);
    at("lead").textContent = `${good ? "The fastest setting that keeps the quality" : "The fastest setting"}, ${settingText(row)}: ${parts.join(", ")}.`;
  }
  const count = (values, word) => `${values.size} ${word}${values.size === 1 ? "" : "s"}`, machine = DATA.machine;
  at("facts").textContent = [count(new Set(CELLS), "video"), count(new Set(CELLS.map((c) => c.prompt)), "prompt"),
    count(new Set(CELLS.map((c) => c.seed)), "seed"), machine.device || machine.cpu].filter(Boolean).join(" · ");
  const r = DATA.report, lost = r.missing.length ? ` ${r.missing.length} could not be read.` : "";
  if (CELLS.some((c) => c.video && !VIDEOS[c.id])) {
    at("facts").after(h("p", { class: "note", id: "embedded" }, `${r.embedded} of ${CELLS.length} videos are embedded (${megabytes(r.embedded_bytes)}; the limit is ${megabytes(r.limit_bytes)}): first one seed of every prompt, beginning with its dense video and its videos at the knee. The other videos are in the folder cells beside this file.${lost}`));
  }
}

function drawTable() {
  const kinds = [...COSTS, ...METRICS], infinite = (row, kind) => kind.key === "psnr_db" && !has(row.psnr_db);
  const line = (row) => h("tr", { class: settingKey(row) === STATE.setting ? "on" : null },
    h("th", { scope: "row" }, h("button", { type: "button", onclick: () => { chooseSetting(row); at("watch").scrollIntoView(); } }, settingText(row)),
      KNEES.has(settingKey(row)) ? h("span", { class: "tag" }, "knee") : null),
    h("td", {}, String(row.videos)), kinds.map((kind) => h("td", {}, infinite(row, kind) ? "∞" : kind.show(valueOf(row, kind)))));
  at("settings").replaceChildren(h("table", { class: "data" },
    h("thead", {}, h("tr", {}, ["Setting", "Videos", ...kinds.map((k) => k.label)].map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, SUMMARY.map(line))));
}

startTop();
at("how").textContent = JSON.stringify({ config: DATA.config, machine: DATA.machine, model: MODEL, plan: DATA.plan }, null, 2);
at("footer").textContent = `Written by fastcar ${DATA.version || ""}. This page loads nothing from a network. results.csv and results.json contain these and further numbers.`;
if (!CELLS.length) for (const section of document.querySelectorAll("section")) section.remove();
else {
  startChart();
  startPlayer();
  LISTENERS.push(drawTable);
  const knee = (c) => KNEES.has(settingKey(c)), there = CELLS.filter((c) => !dense(c) && VIDEOS[c.id]);
  watch(there.find(knee) || there[0] || CELLS.find((c) => !dense(c)) || CELLS[0]);
}
