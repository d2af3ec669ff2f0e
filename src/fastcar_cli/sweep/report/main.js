/* Headline, facts, configuration, and the start of all parts. */
const WORDS = [
  ["tau", "The threshold. An MLP is replayed where the temporal attention score exceeds it; off decodes densely, −∞ replays all that can."],
  ["Replayed", "Share of MLPs taken from the frame before instead of computed. “Of all” counts the first frame, which can't replay; “of eligible” leaves it out."],
  ["Speed-up", "Median decode time of the dense video divided by that of the replayed one, same prompt and seed."],
  ["Knee", "The setting beyond which more replay costs much quality for little speed; the text under the plot says how it is chosen."],
  ["PSNR, SSIM, MS-SSIM", "Similarity to the dense video, frame by frame and in the mean; higher is closer. Identical videos have infinite PSNR."],
  ["Temporal error", "Mean absolute error of the change from frame to frame, on a scale of 0 to 255. It shows regions that freeze or lag."],
  ["Prompt all right", "Share of videos in which background, colour, shape, motion and size are what the prompt asks for, judged by a program."],
  ["Ratio", "A share of MLPs that was to be replayed: a controller moves the threshold of every layer to keep it."],
  ["Score", "What the threshold is compared with: the temporal attention score (tas), or one of those it is compared with."],
  ["Gate", "Who decides on a replay: each row of the batch (row), or a guided pair together (pair)."],
  ["Drafts", "Tokens that one pass verifies: frame-8 drafts aligned tokens, jacobi-8 also keeps what the last pass drew, up to 8 tokens a pass. The video stays the same."],
  ["Window", "How many last tokens are attended to; off means all."],
];

/** Nested data as [dotted key, text]. */
function flat(data, prefix = "") {
  return Object.entries(data || {}).flatMap(([key, value]) => {
    if (value && typeof value === "object" && !Array.isArray(value)) return flat(value, `${prefix}${key}.`);
    return [[prefix + key, !has(value) ? "–" : Array.isArray(value) ? value.map((v) => (has(v) ? String(v) : "off")).join(", ") || "–" : String(value)]];
  });
}

/** Whether a setting loses no more than 2 % of right videos or, where nobody judges, 0.02 SSIM or all but 40 dB. */
function keepsQuality(row) {
  if (has(row.fidelity_drop)) return row.fidelity_drop <= 0.02;
  if (has(row.ssim)) return row.ssim >= 0.98;
  return row.psnr_db === null || row.psnr_db >= 40;
}

function startTop() {
  const fastest = (rows) => rows.filter((r) => has(r.speedup)).sort((a, b) => b.speedup - a.speedup)[0];
  const rows = SUMMARY.filter((r) => has(r.tau)), kept = fastest(rows.filter((r) => keepsQuality(r) && r.speedup > 1));
  const row = kept || fastest(rows) || rows[0], atKnee = row && KNEES.has(settingKey(row));
  at("headline").textContent = !row ? `${MODEL.name}: dense decoding only`
    : has(row.speedup) && !kept ? `${MODEL.name}: no setting is faster and keeps the quality`
    : has(row.speedup) ? `${MODEL.name} decodes ${times(row.speedup)} as fast at ${settingText(row)}` : `${MODEL.name} at ${settingText(row)}`;
  if (row) {
    const parts = [`${percent(row.replay_ratio)} of its MLPs are replayed instead of computed`];
    if (has(row.ssim)) parts.push(`the videos keep an SSIM of ${fixed(3)(row.ssim)} with the dense ones`);
    if (has(row.all_right)) parts.push(`${percent(row.all_right)} show all that the prompt asks for${has(row.fidelity_drop) ? ` (dense: ${percent(row.all_right + row.fidelity_drop)})` : ""}`);
    const where = kept ? "the fastest setting that keeps the quality" : `the fastest setting, ${settingText(row)}`;
    at("lead").textContent = `${has(row.speedup) ? `At ${where}${atKnee ? ", a knee" : ""}, ` : ""}${parts.slice(0, -1).join(", ")}${parts.length > 1 ? " and " : ""}${parts.at(-1)}.`;
    at("lead").textContent = at("lead").textContent.replace(/^./, (c) => c.toUpperCase());
    const tiles = [[times(row.speedup), "speed-up in decoding", "hot"], [percent(row.replay_ratio), "of MLPs replayed", "hot"]];
    if (has(row.ssim)) tiles.push([fixed(3)(row.ssim), "SSIM with dense"]);
    if (row.psnr_db !== undefined) tiles.push([has(row.psnr_db) ? `${fixed(1)(row.psnr_db)} dB` : "∞ dB", "PSNR with dense"]);
    if (has(row.all_right)) tiles.push([percent(row.all_right), "all right by the prompt"]);
    at("tiles").append(...tiles.map(([value, text, hot]) => h("div", { class: `tile ${hot || ""}` }, h("b", {}, value), h("span", {}, text))));
  }
  const r = DATA.report, count = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
  const machine = DATA.machine || {}, facts = [count(CELLS.length, "video"), count(new Set(CELLS.map((c) => c.prompt)).size, "prompt"), count(new Set(CELLS.map((c) => c.seed)).size, "seed"),
    `${count(MODEL.frames, "frame")} each`, machine.device || machine.cpu, `this file: ${megabytes(r.file_bytes)}`].filter(Boolean);
  at("facts").textContent = facts.join(" · ");
  const left = CELLS.filter((c) => c.video && !VIDEOS[c.id]).length;
  if (left) {
    const lost = r.missing.length ? ` ${r.missing.length} could not be read.` : "";
    at("facts").after(h("p", { class: "note", id: "embedded" }, `${r.embedded} of ${CELLS.length} videos are embedded (${megabytes(r.embedded_bytes)}; the limit is ${megabytes(r.limit_bytes)}): one seed of every prompt first, and of these the dense one and those at the knee first. The others lie in the folder cells beside this file.${lost}`));
  }
}

function startHow() {
  const card = (title, data) => {
    const rows = flat(data);
    return rows.length ? h("div", {}, h("h3", {}, title), h("dl", {}, rows.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]))) : null;
  };
  const { prompts, ...plan } = PLAN;
  const parts = [card("Configuration", DATA.config), card("Machine", DATA.machine), card("Model", MODEL),
    card("Plan", { prompts: `${(prompts || []).length}`, ...plan, tau: (plan.tau || []).map(tauText), window: (plan.window || []).map(windowText), metrics: DATA.metrics })];
  at("how").append(...parts.filter(Boolean));
  at("words").append(...WORDS.flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
  at("footer").textContent = `Written by fastcar ${DATA.version || ""}. Everything is in this file; nothing is loaded from a network. The same numbers: results.csv, results.json.`;
}

function start() {
  startTop();
  if (!CELLS.length) {
    for (const section of document.querySelectorAll("section:not([aria-labelledby=how-title])")) section.remove();
    at("headline").textContent = "No video is finished yet";
    startHow();
    return;
  }
  const knee = (DATA.knee || []).map((k) => CELLS.find((c) => settingKey(c) === settingKey(k) && VIDEOS[c.id])).find(Boolean);
  const first = knee || CELLS.find((c) => has(c.tau) && VIDEOS[c.id]) || CELLS.find((c) => has(c.tau)) || CELLS[0];
  Object.assign(STATE, { prompt: first.prompt, seed: first.seed, setting: settingKey(first) });
  startTrade();
  startPlayer();
  startWhere();
  startTables();
  startHow();
}
addEventListener("scroll", hideTip, { passive: true });
start();
