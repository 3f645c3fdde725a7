/* Tables: sortable by buttons in their heads, marked with aria-sort, paged when long. */

/* columns: [{title, text, render(row), value(row)}]; the first is the row's head. */
function sortableTable(target, { columns, rows, caption, sort, page = 0, className = "", rowClass, keepOrder = false }) {
  const box = $(target);
  const view = { column: sort ? sort[0] : -1, down: sort ? sort[1] : false, page: 0 };
  const missing = (value) => value === null || value === undefined || Number.isNaN(value);

  function ordered() {
    if (view.column < 0) return rows;
    const value = columns[view.column].value;
    const sign = view.down ? -1 : 1;
    return rows
      .map((row, place) => [value(row), place, row])
      .sort(([a, i], [b, j]) => {
        if (missing(a) || missing(b)) return missing(a) - missing(b) || i - j;
        return (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b) * sign || i - j;
      })
      .map((entry) => entry[2]);
  }

  function head() {
    return el("tr", {}, columns.map((column, c) => {
      const attributes = { scope: "col", class: column.text ? "text" : "" };
      if (!column.value || keepOrder) return el("th", attributes, column.title);
      if (view.column === c) attributes["aria-sort"] = view.down ? "descending" : "ascending";
      const press = () => {
        view.down = view.column === c ? !view.down : Boolean(column.downFirst);
        view.column = c;
        view.page = 0;
        draw();
        box.querySelectorAll("thead button")[columns.slice(0, c).filter((k) => k.value).length].focus();
      };
      return el("th", attributes, el("button", { type: "button", onclick: press, title: `Sort by ${column.title}` }, column.title));
    }));
  }

  function body(list) {
    return list.map((row) => el("tr", { class: rowClass && rowClass(row) }, columns.map((column, c) => {
      const content = column.render(row);
      const options = { class: [column.text ? "text" : "", column.cellClass ? column.cellClass(row) : ""].join(" ").trim() || undefined };
      if (column.cellStyle) options.style = column.cellStyle(row);
      if (c === 0) return el("th", { ...options, scope: "row" }, content);
      return el("td", options, content);
    })));
  }

  function draw() {
    const list = ordered();
    const shown = page ? list.slice(view.page * page, (view.page + 1) * page) : list;
    /* The caption stands outside the scrolling box, where it can wrap; it still names the table. */
    const name = `${target}-caption`;
    const table = el("table", { class: className, "aria-labelledby": name }, el("thead", {}, head()), el("tbody", {}, body(shown)));
    const parts = [el("p", { class: "caption", id: name }, caption), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": name }, table)];
    if (page && list.length > page) {
      const last = Math.ceil(list.length / page) - 1;
      const turn = (by, id) => () => { view.page = Math.min(last, Math.max(0, view.page + by)); draw(); box.querySelector(id).focus(); };
      parts.push(el("div", { class: "pages" },
        el("button", { type: "button", class: "quiet small prev", onclick: turn(-1, ".prev"), "aria-disabled": String(view.page === 0) }, "Previous"),
        el("span", { role: "status" }, `${(view.page * page + 1).toLocaleString("en")} to ${Math.min(list.length, (view.page + 1) * page).toLocaleString("en")} of ${list.length.toLocaleString("en")}`),
        el("button", { type: "button", class: "quiet small next", onclick: turn(1, ".next"), "aria-disabled": String(view.page === last) }, "Next")));
    }
    box.replaceChildren(...parts);
  }
  draw();
}

/* A plain table of numbers beside a chart: rows of [head, ...values]. */
function altTable(target, caption, heads, rows) {
  const columns = heads.map((title, c) => ({
    title, text: c === 0, value: (row) => row[c],
    render: (row) => (typeof row[c] === "number" ? number(row[c], 1) : row[c] ?? "–"),
  }));
  sortableTable(target, { columns, rows, caption });
}

const swatch = (m) => el("span", { class: "swatch", style: { "--c": color(m) }, "aria-hidden": "true" });

function published(cell, source) {
  const entry = cell.published && cell.published[source];
  if (!entry) return "–";
  const text = number(entry[0]);
  return entry[1] ? [text, el("abbr", { class: "flag", title: entry[1], tabindex: "0", "aria-label": `Known problem: ${entry[1]}` }, "!")] : text;
}

function drawRanking() {
  const list = cells();
  const worst = Math.max(1, ...list.map((cell) => cell.error));
  const best = Math.min(...list.map((cell) => cell.error));
  const has = (name) => list.some((cell) => cell.published && cell.published[name]);
  const columns = [
    { title: "Method", text: true, value: (c) => DATA.methods[c.m].title, render: (c) => [swatch(c.m), DATA.methods[c.m].title] },
    { title: "Error %", value: (c) => c.error, cellClass: (c) => (c.error === best ? "best" : ""),
      render: (c) => [c.std === null ? number(c.error, 2) : `${number(c.error, 2)} ± ${number(c.std, 2)}`,
        el("span", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width: `${(100 * c.error) / worst}%`, "--c": color(c.m) } }))] },
    { title: "Against the best rival", value: (c) => (c.against ? c.against[1] : null),
      render: (c) => against(c) },
    ...(has("paper") ? [{ title: "Paper", value: (c) => c.published?.paper?.[0], render: (c) => published(c, "paper") }] : []),
    ...(has("benchmark") ? [{ title: "Public benchmark", value: (c) => c.published?.benchmark?.[0], render: (c) => published(c, "benchmark") }] : []),
    ...(list.some((c) => c.forgotten !== null) ? [{ title: "Forgotten, points", value: (c) => c.forgotten, render: (c) => number(c.forgotten, 2) }] : []),
    ...(list.some((c) => c.ece !== null) ? [{ title: "Calibration error %", value: (c) => c.ece, render: (c) => number(c.ece) }] : []),
    ...(list.some((c) => c.ms !== null) ? [{ title: "ms per batch", value: (c) => c.ms, render: (c) => number(c.ms) }] : []),
    { title: "Seeds", value: (c) => c.runs.length, render: (c) => el("span", { title: recordNames(c.runs, 8) }, String(c.runs.length)) },
  ];
  sortableTable("ranking-table", { columns, rows: list, sort: [1, false], caption: "Mean error over seeds ± deviation, lower is better." });
}

function against(cell) {
  if (!cell.against) return "–";
  const [rival, mean, low, high, verdict] = cell.against;
  const sign = mean > 0 ? "+" : "";
  const range = low === null ? "" : ` [${number(low, 2)}, ${number(high, 2)}]`;
  return el("span", { title: `Paired with ${DATA.methods[rival].title} over the seeds and domains both have, 95 % bootstrap interval` },
    `${sign}${number(mean, 2)}${range} `, el("span", { class: verdict === "better" ? "verdict yes" : "verdict" }, verdict));
}

function drawDomains() {
  const { domains } = group();
  const list = cells();
  $("domains").hidden = domains.length < 2;
  if (domains.length < 2) return;
  const all = list.flatMap((cell) => cell.domains).filter((v) => v !== null);
  const low = Math.min(...all), high = Math.max(...all);
  const shade = (v) => (v === null ? {} : { background: `rgba(var(--heat), ${(0.03 + (0.42 * (v - low)) / Math.max(1, high - low)).toFixed(3)})` });
  const lowest = domains.map((_, d) => Math.min(...list.map((c) => c.domains[d] ?? Infinity)));
  const columns = [
    { title: "Method", text: true, value: (c) => DATA.methods[c.m].title, render: (c) => [swatch(c.m), DATA.methods[c.m].title] },
    ...domains.map((name, d) => ({ title: words(name), value: (c) => c.domains[d], render: (c) => number(c.domains[d]),
      cellStyle: (c) => shade(c.domains[d]), cellClass: (c) => (list.length > 1 && c.domains[d] === lowest[d] ? "best" : "") })),
    { title: "mean", value: (c) => c.error, render: (c) => number(c.error) },
  ];
  sortableTable("domain-table", { columns, rows: list, className: "heat", caption: "Percent, in the order of the stream. A stronger tint is worse, bold is the best of a column." });
}

function drawPaperTable() {
  const table = DATA.tables[Number($("table").value)];
  if (!table) return;
  const ends = [["Markdown", "md"], ["LaTeX", "tex"], ["CSV", "csv"]];
  $("table-files").replaceChildren("As a file: ", ...ends.flatMap(([name, end], n) => [n ? ", " : "", el("a", { href: `tables/${table.file}.${end}` }, name)]));
  const labels = table.heads.map((title, h) => ({ title, text: true, value: (row) => row[0][h], render: (row) => row[0][h] }));
  const values = table.columns.map((title, c) => ({
    title,
    value: (row) => row[1][c][1] ?? (row[1][c][0] === "–" ? null : row[1][c][0]),
    cellClass: (row) => (row[2] === "ours" ? ["", "best", "second"][row[1][c][2]] : ""),
    render: (row) => {
      const [text, , , notes] = row[1][c];
      return notes.length ? [text, el("sup", {}, notes.map(letter).join(", "))] : text;
    },
  }));
  sortableTable("paper-table", { columns: [...labels, ...values], rows: table.rows, caption: table.caption,
    rowClass: (row) => (row[2] === "ours" ? "" : "published") });
  if (table.notes.length) {
    $("paper-table").append(el("ul", { class: "footnotes", "aria-label": "Footnotes", tabindex: "0" }, table.notes.map((text, n) => el("li", {}, el("sup", {}, letter(n)), ` ${text}`))));
  }
}
const letter = (n) => (n >= 26 ? letter(Math.floor(n / 26) - 1) : "") + "abcdefghijklmnopqrstuvwxyz"[n % 26];

function drawRecords() {
  const all = DATA.records;
  const asked = $("find").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const here = $("only-here").checked;
  const groupText = DATA.groups.map((g) => `${g.settingTitle} ${g.setting} ${g.dataTitle} ${g.data} ${g.modelTitle} ${g.variant}`.toLowerCase());
  const methodText = DATA.methods.map((m) => `${m.title} ${m.name}`.toLowerCase());
  const rows = [];
  for (let r = 0; r < all.id.length; r++) {
    if (here && all.g[r] !== state.group) continue;
    if (asked.length) {
      const text = `${all.id[r].toLowerCase()} ${methodText[all.m[r]]} ${groupText[all.g[r]]}`;
      if (!asked.every((word) => text.includes(word))) continue;
    }
    rows.push(r);
  }
  const g = (r) => DATA.groups[all.g[r]];
  const columns = [
    { title: "Record", text: true, value: (r) => all.id[r], render: (r) => el("span", { class: "id" }, all.id[r]) },
    { title: "Method", text: true, value: (r) => DATA.methods[all.m[r]].title, render: (r) => [swatch(all.m[r]), DATA.methods[all.m[r]].title] },
    { title: "Setting", text: true, value: (r) => g(r).settingTitle, render: (r) => g(r).settingTitle },
    { title: "Data", text: true, value: (r) => g(r).dataTitle, render: (r) => g(r).dataTitle },
    { title: "Network", text: true, value: (r) => g(r).modelTitle, render: (r) => [g(r).modelTitle, g(r).variant].filter(Boolean).join(" · ") },
    { title: "Seed", value: (r) => all.seed[r], render: (r) => String(all.seed[r]) },
    { title: "Error %", value: (r) => all.error[r], render: (r) => number(all.error[r], 2) },
    { title: "ms per batch", value: (r) => all.ms[r], render: (r) => number(all.ms[r]) },
    { title: "Started", text: true, value: (r) => all.started[r], render: (r) => all.started[r].slice(0, 16).replace("T", " ") || "–" },
  ];
  sortableTable("record-table", { columns, rows, page: 50, caption: many(rows.length, "record") });
}

function drawNotes() {
  const parts = [];
  const list = (title, items) => { if (items.length) parts.push(el("h3", {}, title), el("ul", {}, items)); };
  const shown = (rows, make) => {
    const items = rows.slice(0, 200).map(make);
    if (rows.length > 200) items.push(el("li", {}, `… and ${rows.length - 200} more`));
    return items;
  };
  list("Left out to keep this page quick", DATA.dropped.map((text) => el("li", {}, text)));
  list("Records that repeat a seed; the newest of each seed counts", shown(DATA.repeats, ([id, text]) => el("li", {}, el("code", {}, id), ` ${text}`)));
  list("Files that were skipped", shown(DATA.problems, ([file, why]) => el("li", {}, el("code", {}, file), ` ${why}`)));
  list("Jobs that failed", shown(DATA.failures, ([id, title, reason]) => el("li", {}, el("code", {}, id), ` ${title}: ${reason}`)));
  list("Warnings stored with the records", shown(DATA.warnings, ([id, text]) => el("li", {}, el("code", {}, id), ` ${text}`)));
  const published = DATA.groups.some((g) => g.cells.some((c) => c.published));
  if (published) parts.push(el("h3", {}, "Published numbers"), el("p", { class: "sub" }, "Values of the paper and of the public benchmark are as printed. Where a printed value contradicts another one, or cannot be right, it carries a mark or a footnote that says why; such values are no target."));
  if (!parts.length) parts.push(el("p", { class: "sub" }, "Nothing was skipped, nothing failed, nothing was left out."));
  $("notes-body").replaceChildren(...parts);
}
