/* Wiring: selections, theme, address, first drawing. */
const AREAS = [["ranking", "Ranking"], ["time", "Over time"], ["domains", "Domains"], ["cycles", "Cycles"], ["shift", "Shifts"], ["recovery", "Returns"], ["forgetting", "Forgetting"], ["cost", "Cost"], ["maps", "Prototypes"], ["tables", "Tables"], ["records", "Records"], ["notes", "Notes"]];
const ABSENT = { time: "error over time (no curve is stored)", cycles: "cycles (this stream has one pass)", recovery: "returns (no domain comes back)", forgetting: "forgetting (no domain comes back and nothing was measured on held-out images)", cost: "cost (no times are stored)", maps: "prototypes (none recorded)", shift: "shifts (batches mix domains)" };

function setTheme(name, keep) {
  document.documentElement.dataset.theme = name;
  $("theme").replaceChildren(name === "dark" ? "☀" : "☾", el("span", { class: "word" }, name === "dark" ? " Light" : " Dark"));
  if (keep) try { localStorage.setItem("slomofast-theme", name); } catch { /* a page opened from a file may not store */ }
}
function storedTheme() { try { return localStorage.getItem("slomofast-theme"); } catch { return null; } }

const unique = (list) => [...new Set(list)];
function options(select, entries, value) {
  select.replaceChildren(...entries.map(([key, text]) => el("option", { value: key }, text)));
  select.value = String(value);
  select.disabled = entries.length < 2;
}

function fillSelection() {
  const g = group();
  const settings = unique(DATA.groups.map((x) => x.setting));
  options($("setting"), settings.map((s) => [s, DATA.groups.find((x) => x.setting === s).settingTitle]), g.setting);
  const inSetting = DATA.groups.filter((x) => x.setting === g.setting);
  options($("data"), unique(inSetting.map((x) => x.data)).map((d) => [d, inSetting.find((x) => x.data === d).dataTitle]), g.data);
  const here = DATA.groups.map((x, n) => [n, x]).filter(([, x]) => x.setting === g.setting && x.data === g.data);
  options($("group"), here.map(([n, x]) => [n, [x.modelTitle, x.variant].filter(Boolean).join(" · ")]), state.group);
  const seeds = Object.keys(g.layoutOfSeed);
  if (state.seed !== "mean" && !seeds.includes(state.seed)) state.seed = "mean";
  options($("seed"), [["mean", "mean of all"], ...seeds.map((s) => [s, `seed ${s}`])], state.seed);
  const present = g.cells.map((cell) => cell.m);
  $("methods").replaceChildren(...present.map((m) => {
    const input = el("input", { type: "checkbox", value: m, onchange: (event) => { event.target.checked ? state.methods.add(m) : state.methods.delete(m); draw(); } });
    input.checked = state.methods.has(m);
    return el("label", { class: "chip", style: { "--c": color(m) } }, input, el("span", { class: "dot", "aria-hidden": "true" }), DATA.methods[m].title);
  }));
}

function choose(test) {
  const found = DATA.groups.findIndex(test);
  if (found >= 0) { state.group = found; fillSelection(); draw(); }
}

function seeds(list) {
  const counts = list.map((cell) => cell.runs.length);
  const low = Math.min(...counts), high = Math.max(...counts);
  return !list.length ? "no seeds" : low === high ? `${many(low, "seed")} each` : `${low} to ${high} seeds each`;
}

function drawCards() {
  const list = [...cells()].sort((a, b) => a.error - b.error);
  const g = group();
  const [best, next] = list;
  const source = g.cells.find((cell) => DATA.methods[cell.m].name === "source");
  const card = (name, big, small, extra = "") => el("div", { class: `card ${extra}` }, el("dt", {}, name), el("dd", { class: "big" }, big), el("dd", { class: "small" }, small));
  const parts = [];
  if (best) parts.push(card("Lowest error", `${number(best.error, 1)} %`, title(best.m) + (best.std === null ? "" : `, ± ${number(best.std, 2)}`), "first"));
  if (next) {
    const known = best.against && best.against[0] === next.m;
    const verdict = known ? { better: ", interval excludes 0", worse: ", interval excludes 0", undecided: ", interval contains 0" }[best.against[4]] ?? "" : "";
    parts.push(card("Lead over the next", `${number(next.error - best.error, 2)} points`, `over ${title(next.m)}${verdict}`));
  }
  if (source && best && source !== best) parts.push(card("Gain over no adaptation", `${number(source.error - best.error, 1)} points`, `from ${number(source.error)} % to ${number(best.error)} %`));
  const runs = list.reduce((sum, cell) => sum + cell.runs.length, 0);
  parts.push(card("Runs shown", runs.toLocaleString("en"), `${many(list.length, "method")}, ${seeds(list)}`));
  $("cards").replaceChildren(...parts);
}

function draw() {
  const g = group();
  $("experiment").textContent = `${g.title} — ${g.protocol}.`;
  $("method-count").textContent = `${cells().length} of ${g.cells.length}`;
  drawCards(); drawRanking(); drawTime(); drawDomains(); drawCycles(); drawShift(); drawRecovery(); drawForgetting(); drawCost(); drawMaps();
  fillRows();
  if ($("only-here").checked) drawRecords();
  const absent = Object.keys(ABSENT).filter((id) => $(id).hidden).map((id) => ABSENT[id]);
  $("absent").textContent = absent.length && cells().length ? `Not shown for this selection: ${absent.join("; ")}.` : "";
  for (const link of document.querySelectorAll("#nav a")) link.parentElement.hidden = $(link.hash.slice(1)).hidden;
  $("live").textContent = `${g.title}: ${many(cells().length, "method")} shown.`;
  remember();
}

/* Charts stand in pairs; one left over takes the whole row. */
function fillRows() {
  const shown = [...document.querySelectorAll(".pair > section")].filter((part) => !part.hidden);
  shown.forEach((part, n) => part.classList.toggle("alone", shown.length % 2 === 1 && n === shown.length - 1));
  for (const part of shown) {
    const chart = part.querySelector(".chart");
    if (chart.data && Math.abs(chart.clientWidth - chart.querySelector(".main-svg").clientWidth) > 2) Plotly.Plots.resize(chart);
  }
}

/* The selection lives in the address, so a link shows what its sender saw. */
function remember() {
  const g = group();
  const hidden = g.cells.filter((cell) => !state.methods.has(cell.m)).map((cell) => cell.m);
  const text = new URLSearchParams({ g: state.group, seed: state.seed, without: hidden.join(".") }).toString();
  try { history.replaceState(null, "", `#${text}`); } catch { /* some viewers forbid it */ }
}
function recall() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const chosen = Number(asked.get("g"));
  if (asked.has("g") && DATA.groups[chosen]) state.group = chosen;
  if (asked.has("seed")) state.seed = asked.get("seed");
  return new Set((asked.get("without") || "").split(".").filter(Boolean).map(Number));
}

function findRecord(id) {
  $("find").value = id;
  $("only-here").checked = false;
  drawRecords();
  $("records").scrollIntoView();
  $("find").focus({ preventScroll: true });
}

function start() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(storedTheme() || (system.matches ? "dark" : "light"));
  const repaint = () => { if (DATA.groups.length) { fillSelection(); draw(); drawRecords(); } };
  $("theme").addEventListener("click", () => { setTheme(theme() === "dark" ? "light" : "dark", true); repaint(); });
  system.addEventListener("change", (event) => { if (!storedTheme()) { setTheme(event.matches ? "dark" : "light"); repaint(); } });
  $("nav").replaceChildren(...AREAS.map(([id, text]) => el("li", {}, el("a", { href: `#${id}`, onclick: (event) => { event.preventDefault(); const part = $(id); part.tabIndex = -1; part.scrollIntoView(); part.focus({ preventScroll: true }); } }, text))));
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("ranking").focus(); });
  drawNotes();
  const skipped = DATA.problems.length;
  const counts = [many(DATA.records.id.length, "record"), many(unique(DATA.methods.map((m) => m.name)).length, "method"), many(unique(DATA.groups.map((x) => x.setting)).length, "setting"), many(unique(DATA.groups.map((x) => x.data)).length, "data set")];
  if (DATA.failures.length) counts.push(`${DATA.failures.length.toLocaleString("en")} failed`);
  $("counts").textContent = counts.join(" · ");
  if (skipped) $("counts").append(" · ", el("a", { href: "#notes", onclick: (event) => { event.preventDefault(); $("notes").scrollIntoView(); } }, `${many(skipped, "file")} skipped`));
  if (!DATA.groups.length) {
    $("empty").hidden = false;
    $("empty").textContent = skipped || DATA.failures.length ? "No finished run could be read. The notes below say why." : "There are no records here yet. Run `slomofast run` or `slomofast sweep`, then make the report again.";
    for (const [id] of AREAS) if (id !== "notes") $(id).hidden = true;
    $("controls").hidden = true;
    $("nav").hidden = true;
    return;
  }
  const without = recall();
  DATA.methods.forEach((method, m) => { if (!without.has(m)) state.methods.add(m); });
  const crowded = (g) => g.cells.length > 16 && g.cells.some((cell) => DATA.methods[cell.m].plain);
  if (!without.size && crowded(group())) DATA.methods.forEach((method, m) => { if (!method.plain) state.methods.delete(m); });
  if (window.innerWidth < 820) $("methods-box").open = false;

  $("setting").addEventListener("change", (e) => { const d = group().data; choose((x) => x.setting === e.target.value && x.data === d); if (group().setting !== e.target.value) choose((x) => x.setting === e.target.value); });
  $("data").addEventListener("change", (e) => choose((x) => x.setting === group().setting && x.data === e.target.value));
  $("group").addEventListener("change", (e) => { state.group = Number(e.target.value); fillSelection(); draw(); });
  $("seed").addEventListener("change", (e) => { state.seed = e.target.value; draw(); });
  $("forgetting-method").addEventListener("change", drawForgetting);
  $("map-run").addEventListener("change", drawMaps);
  const set = (test) => () => { group().cells.forEach((cell) => (test(cell.m) ? state.methods.add(cell.m) : state.methods.delete(cell.m))); fillSelection(); draw(); };
  $("all-methods").addEventListener("click", set(() => true));
  $("no-methods").addEventListener("click", set(() => false));
  $("default-methods").addEventListener("click", set((m) => DATA.methods[m].plain));
  $("default-methods").hidden = DATA.methods.every((m) => m.plain);
  options($("table"), DATA.tables.map((table, n) => [n, table.title]), 0);
  $("table").addEventListener("change", drawPaperTable);
  let waiting = 0;
  $("find").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(drawRecords, 120); });
  $("only-here").addEventListener("change", drawRecords);
  fillSelection();
  draw();
  drawPaperTable();
  drawRecords();
  let width = window.innerWidth;
  addEventListener("resize", () => { clearTimeout(waiting); if (window.innerWidth !== width) { width = window.innerWidth; waiting = setTimeout(drawTime, 200); } });
  document.documentElement.dataset.ready = "yes";
}
start();
