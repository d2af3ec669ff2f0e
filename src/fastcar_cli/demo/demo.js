/* The page of `fastcar demo`: a form, and the player with the last video; its left screen shows no map. */
const FORM = at("form");
FORM.model.append(...DATA.models.map((name) => h("option", {}, name)));
for (const [name, value] of Object.entries(DATA.form)) if (FORM[name]) FORM[name].value = value;

/** Yield lines of JSON as they arrive. */
async function* linesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value || "")).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
    if (done) return;
  }
}

let ending = new AbortController();
at("cancel").addEventListener("click", () => ending.abort());

async function make(event) {
  event.preventDefault();
  ending = new AbortController();
  show("error", "");
  at("make").disabled = at("make").hidden = true;
  at("cancel").hidden = false;
  at("progress").hidden = false;
  at("progress").removeAttribute("value");
  let end = { error: "fastcar does not answer", hint: "start fastcar demo again if it has ended" };
  try {
    const body = JSON.stringify(Object.fromEntries(new FormData(FORM)));
    const response = await fetch("make", { method: "POST", body, signal: ending.signal });
    if (!response.ok) end = { error: await response.text() };
    else for await (const line of linesOf(response)) {
      if (has(line.share)) at("progress").value = line.share;
      else end = line;
    }
  } catch { /* The connection broke: `end` says so. */ }
  if (end.done) return location.reload();
  if (ending.signal.aborted) end = { error: "cancelled" };
  at("progress").hidden = at("cancel").hidden = true;
  at("make").disabled = at("make").hidden = false;
  show("error", `${end.error}${end.hint ? `; ${end.hint}` : ""}`);
}
FORM.addEventListener("submit", make);
show("notes", DATA.notes.join("; "));
at("footer").textContent = `fastcar ${DATA.version}. The address works only on this machine.`;

if (CELLS.length) {
  const [cell] = CELLS;
  at("watch").hidden = false;
  startPlayer();
  watch(cell);
  VIEW.a.caption.textContent = "Video";
  VIEW.a.video.setAttribute("aria-label", "Video");
  VIEW.a.swatch.remove();
  Object.assign(at("save"), { href: `data:video/mp4;base64,${VIDEOS.video}`, download: DATA.file });
}
