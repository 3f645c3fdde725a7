/* Charts: every point says which records it comes from; every chart has a table beside it. */
const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
const narrow = () => window.innerWidth < 620;

function layout(extra = {}) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"), tickcolor: css("--line"), automargin: true, tickfont: { size: 11.5 } };
  const { xaxis, yaxis, ...rest } = extra;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { family: css("--sans"), size: 12.5, color: css("--muted") },
    margin: { l: 48, r: 12, t: 12, b: 44 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--line"), font: { family: css("--sans"), size: 12.5, color: css("--ink") }, align: "left" },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}
const axisTitle = (text) => ({ text, font: { size: 12, color: css("--muted") }, standoff: 8 });

function plot(id, traces, extra, label) {
  const node = $(id);
  Plotly.react(node, traces, layout(extra), CONFIG);
  node.setAttribute("aria-label", label);
  if (!node.dataset.wired) {
    node.dataset.wired = "yes";
    node.on("plotly_click", (event) => {
      const rows = event.points[0].data.meta;
      if (rows && rows.length) findRecord(DATA.records.id[rows[0]]);
    });
  }
}

const from = (rows) => `<br><span style="color:${css("--muted")}">record${rows.length === 1 ? "" : "s"} ${safe(recordNames(rows))}</span>`;
const title = (m) => DATA.methods[m].title;

/* [row, curve] of what is shown of a method: the mean over seeds, or one seed's own run. */
function lineOf(cell) {
  if (state.seed === "mean") return [cell.runs, cell.curve];
  const row = cell.runs.find((r) => String(DATA.records.seed[r]) === state.seed);
  if (row === undefined) return [[], undefined];
  return [[row], DATA.runCurves[row] || (cell.runs.length === 1 ? cell.curve : undefined)];
}

function drawTime() {
  const g = group();
  const chosen = g.layouts[state.seed === "mean" ? 0 : g.layoutOfSeed[state.seed] ?? 0];
  const lines = cells().map((cell) => [cell, ...lineOf(cell)]).filter((line) => line[2]);
  $("time").hidden = !chosen || !lines.length;
  if (!chosen || !lines.length) return;
  const several = g.layouts.length > 1 && state.seed === "mean";
  const bandAt = (x) => chosen.bands.find((b) => x - 1 >= b[1] - 0.5 && x - 1 < b[2]) || [""];
  const names = several ? null : chosen.x.map((x) => words(bandAt(x)[0]));
  const traces = lines.map(([cell, rows, curve]) => ({
    type: "scatter", mode: "lines", name: safe(title(cell.m)), x: chosen.x, y: curve, meta: rows, customdata: names && names.map(safe),
    line: { color: color(cell.m), width: DATA.methods[cell.m].name.startsWith("slomo") ? 2.6 : 1.7, dash: STYLE[cell.m].dash },
    hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:.1f} %<br>batch %{x:.0f}${names ? ", %{customdata}" : ""}${from(rows)}<extra></extra>`,
  }));
  const bands = several ? [] : chosen.bands;
  const room = ($("chart-time").clientWidth - 60) / Math.max(1, bands.length);
  const shapes = bands.map((band, n) => ({ type: "rect", xref: "x", yref: "paper", x0: band[1] + 0.5, x1: band[2] + 0.5, y0: 0, y1: 1, line: { width: 0 }, layer: "below", fillcolor: n % 2 ? "rgba(0,0,0,0)" : css("--band") }));
  const flat = room >= 66; // wide bands carry their name in two short lines, narrow ones standing
  const annotations = room < 12 ? [] : bands.map((band) => ({
    xref: "x", yref: "paper", x: (band[1] + band[2] + 1) / 2, y: 1.01, xanchor: "center", yanchor: "bottom", showarrow: false,
    text: flat ? safe(words(band[0])).replace(" ", "<br>") : safe(words(band[0])), textangle: flat ? 0 : -90, font: { size: 11, color: css("--muted") },
  }));
  const longest = Math.max(0, ...bands.map((band) => band[0].length));
  const top = annotations.length ? (flat ? 42 : 14 + 6.1 * longest) : 12;
  plot("chart-time", traces, {
    shapes, annotations, margin: { l: 48, r: 14, t: top, b: 44 },
    xaxis: { title: axisTitle("batch"), range: [0.5, chosen.steps + 0.5], showgrid: false },
    yaxis: { title: axisTitle("error %"), rangemode: "tozero" },
  }, `Line chart of the error over ${chosen.steps} batches for ${lines.length} methods: ${g.title}`);
  const notes = [];
  if (chosen.x.length < chosen.steps) notes.push(`${chosen.steps.toLocaleString("en")} batches drawn as ${chosen.x.length} points, each the mean of its stretch.`);
  if (state.seed === "mean" && lines.some((line) => line[1].length > 1)) notes.push("Mean over seeds.");
  if (several) notes.push("The order of domains differs between seeds; choose one seed to see its bands.");
  else if (!bands.length) notes.push("Too many domain changes to shade.");
  $("time-note").textContent = notes.join(" ");
  const every = Math.max(1, Math.ceil(chosen.x.length / 60));
  altTable("alt-time", "Error in percent over time", ["Batch", ...(names ? ["Domain"] : []), ...lines.map((l) => title(l[0].m))],
    chosen.x.map((x, n) => [Math.round(x).toString(), ...(names ? [names[n]] : []), ...lines.map((l) => l[2][n])]).filter((_, n) => n % every === 0));
}

function drawCycles() {
  const list = cells().filter((cell) => cell.cycles);
  $("cycles").hidden = !list.length;
  if (!list.length) return;
  const ticks = list[0].cycles.map((_, c) => c + 1);
  plot("chart-cycles", list.map((cell) => ({
    type: "scatter", mode: "lines+markers", name: safe(title(cell.m)), x: ticks, y: cell.cycles, meta: cell.runs,
    line: { color: color(cell.m), width: 2, dash: STYLE[cell.m].dash }, marker: { size: 7, color: color(cell.m) },
    hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:.1f} %<br>cycle %{x}${from(cell.runs)}<extra></extra>`,
  })), { xaxis: { title: axisTitle("cycle"), dtick: ticks.length > 12 ? undefined : 1 }, yaxis: { title: axisTitle("error %") } },
  `Line chart of the mean error in each of ${ticks.length} cycles for ${list.length} methods`);
  altTable("alt-cycles", "Error in percent by cycle", ["Method", ...ticks.map((t) => `Cycle ${t}`)], list.map((cell) => [title(cell.m), ...cell.cycles]));
}

function drawShift() {
  const list = cells().filter((cell) => cell.profile && cell.profile.first && cell.profile.first.length > 1);
  $("shift").hidden = !list.length;
  if (!list.length) return;
  const traces = [];
  const rows = [];
  for (const cell of list) {
    for (const [kind, dash, words] of [["first", "solid", "first visit"], ["return", "dot", "return"]]) {
      const curve = cell.profile[kind];
      if (!curve || !curve.length) continue;
      traces.push({
        type: "scatter", mode: "lines", name: `${safe(title(cell.m))}, ${words}`, x: curve.map((_, n) => n + 1), y: curve, meta: cell.runs,
        line: { color: color(cell.m), width: 2, dash },
        hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:.1f} %<br>${words}, batch %{x} after the shift${from(cell.runs)}<extra></extra>`,
      });
      const at = (n) => curve[Math.min(curve.length, n) - 1];
      rows.push([title(cell.m), words, at(1), at(5), at(10), curve[curve.length - 1]]);
    }
  }
  const returns = traces.some((t) => t.line.dash === "dot");
  const longest = Math.max(...traces.map((t) => t.x.length));
  plot("chart-shift", traces, { xaxis: { title: axisTitle(returns ? "batch after the shift (dotted: domain seen before)" : "batch after the shift"), dtick: longest > 12 ? undefined : 1 }, yaxis: { title: axisTitle("error %") } },
    `Line chart of the error after a shift for ${list.length} methods`);
  altTable("alt-shift", "Error in percent after a shift", ["Method", "Visit", "Batch 1", "Batch 5", "Batch 10", "Last"], rows);
}

function drawRecovery() {
  const list = cells().filter((cell) => cell.recovery && Object.keys(cell.recovery).length);
  $("recovery").hidden = !list.length;
  if (!list.length) return;
  const mean = (cell) => { const v = Object.values(cell.recovery); return v.reduce((a, b) => a + b, 0) / v.length; };
  const traces = list.flatMap((cell, n) => {
    const names = Object.keys(cell.recovery);
    const jitter = names.map((_, k) => n + 0.5 * ((k + 0.5) / names.length - 0.5));
    return [
      { type: "bar", x: [n], y: [mean(cell)], width: 0.62, marker: { color: color(cell.m), opacity: 0.3 }, meta: cell.runs,
        hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:+.2f} points<br>mean over domains${from(cell.runs)}<extra></extra>` },
      { type: "scatter", mode: "markers", x: jitter, y: Object.values(cell.recovery), customdata: names.map((name) => safe(words(name))), meta: cell.runs,
        marker: { color: color(cell.m), size: 6 },
        hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:+.2f} points<br>%{customdata}${from(cell.runs)}<extra></extra>` },
    ];
  });
  plot("chart-recovery", traces, {
    xaxis: { tickvals: list.map((_, n) => n), ticktext: list.map((c) => safe(title(c.m))), showgrid: false, zeroline: false, range: [-0.6, list.length - 0.4], tickangle: list.length > 4 ? -35 : 0 },
    yaxis: { title: axisTitle("points"), zeroline: true, zerolinewidth: 1.5 },
  }, `Bars of the recovery of ${list.length} methods with a point for each returning domain`);
  const domains = [...new Set(list.flatMap((cell) => Object.keys(cell.recovery)))];
  altTable("alt-recovery", "Recovery in points by domain", ["Method", "Mean", ...domains.map(words)],
    list.map((cell) => [title(cell.m), mean(cell), ...domains.map((d) => cell.recovery[d] ?? null)]));
}

function drawForgetting() {
  /* A method, or one of the networks it keeps. */
  const list = cells().filter((cell) => cell.forgetting || cell.visits).flatMap((cell) =>
    [[cell, ""], ...Object.keys(cell.forgetting?.members || {}).map((member) => [cell, member])]);
  $("forgetting").hidden = !list.length;
  if (!list.length) return;
  const select = $("forgetting-method");
  const before = select.value;
  const key = ([cell, member]) => `${cell.m} ${member}`;
  const label = ([cell, member]) => title(cell.m) + (member ? `: ${member}` : "");
  select.replaceChildren(...list.map((entry) => el("option", { value: key(entry) }, label(entry))));
  const last = list.filter((entry) => !entry[1]).pop();
  select.value = list.some((entry) => key(entry) === before) ? before : key(last);
  const chosen = list.find((entry) => key(entry) === select.value);
  const [cell, member] = chosen;
  let x, y, z, unit, note, rows = cell.runs, scale;
  if (cell.forgetting) {
    const f = { ...cell.forgetting, rows: member ? cell.forgetting.members[member] : cell.forgetting.rows };
    const seen = f.domains.map((_, d) => f.rows.some((row) => row[d] !== null));
    x = f.visits.map((name, n) => `${n + 1} ${words(name)}`);
    y = f.domains.filter((_, d) => seen[d]).map(words);
    z = f.domains.map((_, d) => f.rows.map((row) => row[d])).filter((_, d) => seen[d]);
    unit = "points lost";
    rows = [DATA.records.id.indexOf(f.run)];
    note = "Accuracy on held-out images of each domain (rows) lost since its best, after each visit (columns), in points. Looked at without learning.";
    scale = [[0, css("--grid")], [1, color(cell.m)]];
  } else {
    const domains = [...new Set(cell.visits.map((v) => v[0]))];
    const last = Math.max(...cell.visits.map((v) => v[1]));
    x = Array.from({ length: last + 1 }, (_, n) => `visit ${n + 1}`);
    y = domains.map(words);
    const at = new Map(cell.visits.map(([d, n, e]) => [`${d} ${n}`, e]));
    z = domains.map((d) => x.map((_, n) => at.get(`${d} ${n}`) ?? null));
    unit = "error %";
    note = "These runs measured nothing on held-out images, so this shows the error at each visit (columns) of a domain (rows): a row that darkens to the right is getting worse.";
    scale = [[0, css("--grid")], [1, color(cell.m)]];
  }
  $("forgetting-note").textContent = note;
  const ids = x.map((_, n) => n);
  plot("chart-forgetting", [{
    type: "heatmap", x: ids, y: y.map(safe), z, colorscale: scale, zmin: cell.forgetting ? 0 : undefined, xgap: 1, ygap: 1, hoverongaps: false, meta: rows, customdata: z.map(() => x.map(safe)),
    colorbar: { title: { text: unit, side: "right", font: { size: 11 } }, thickness: 10, outlinewidth: 0, tickfont: { size: 11 } },
    hovertemplate: `<b>%{y}</b>  %{z:.1f} ${unit}<br>%{customdata}${from(rows)}<extra></extra>`,
  }], {
    margin: { l: 48, r: 8, t: 8, b: 44 },
    xaxis: { title: axisTitle(cell.forgetting ? "after visit" : ""), tickvals: thin(ids), ticktext: thin(ids).map((n) => (cell.forgetting ? String(n + 1) : safe(x[n]))), showgrid: false },
    yaxis: { autorange: "reversed", showgrid: false, tickfont: { size: 11 } },
  }, `Heat map for ${label(chosen)}: ${note}`);
  altTable("alt-forgetting", `${label(chosen)}, ${unit}`, ["Domain", ...x], y.map((name, n) => [name, ...z[n]]));
}
function thin(list) {
  const every = Math.max(1, Math.ceil(list.length / (narrow() ? 6 : 15)));
  return list.filter((_, n) => n % every === 0);
}

function drawCost() {
  const list = cells().filter((cell) => cell.ms !== null && cell.ms > 0);
  $("cost").hidden = list.length < 1;
  if (!list.length) return;
  const range = costRange(list);
  const places = list.length <= 14 ? labelPlaces(list, range) : null;
  plot("chart-cost", list.map((cell) => ({
    type: "scatter", mode: places ? "markers+text" : "markers", x: [cell.ms], y: [cell.error], text: [safe(title(cell.m))], textposition: places ? places.get(cell) : undefined, textfont: { size: 11.5, color: css("--ink") },
    marker: { size: 12, color: color(cell.m), line: { color: css("--surface"), width: 1.5 } }, meta: cell.runs, cliponaxis: false,
    error_y: cell.std === null ? undefined : { type: "data", array: [cell.std], color: color(cell.m), thickness: 1.3, width: 3 },
    hovertemplate: `<b>${safe(title(cell.m))}</b>  %{y:.2f} %<br>%{x:.1f} ms per batch${cell.multiple ? `, ${number(cell.multiple)} × a plain forward pass` : ""}${from(cell.runs)}<extra></extra>`,
  })), { margin: { l: 48, r: 24, t: 24, b: 44 }, xaxis: { title: axisTitle("ms per batch"), type: "log", ...costTicks(range), range }, yaxis: { title: axisTitle("error %") } },
  `Scatter chart of error against milliseconds per batch for ${list.length} methods`);
  altTable("alt-cost", "Error against cost", ["Method", "ms per batch", "× plain forward", "Error %"], list.map((c) => [title(c.m), c.ms, c.multiple, c.error]));
}
function costRange(list) {
  const logs = list.map((cell) => Math.log10(cell.ms));
  const pad = 0.14 * Math.max(1, Math.max(...logs) - Math.min(...logs));
  return [Math.min(...logs) - pad, Math.max(...logs) + pad];
}

function costTicks(range) {
  const tickvals = [];
  for (let power = Math.floor(range[0]); power <= Math.ceil(range[1]); power++) tickvals.push(...[1, 2, 5].map((n) => n * 10 ** power));
  return { tickvals, ticktext: tickvals.map((v) => (v >= 1000 ? v.toLocaleString("en") : String(Number(v.toPrecision(3))))), tickangle: 0 };
}
/* Where each name stands so that names cover neither points nor one another, as far as possible. */
function labelPlaces(list, range) {
  const box = $("chart-cost");
  const width = Math.max(200, box.clientWidth - 80), height = Math.max(150, box.clientHeight - 70);
  const errors = list.map((cell) => cell.error);
  const span = Math.max(0.5, (Math.max(...errors) - Math.min(...errors)) * 1.15);
  const at = (cell) => [((Math.log10(cell.ms) - range[0]) / (range[1] - range[0])) * width, height - ((cell.error - Math.min(...errors)) / span) * height];
  const taken = list.map((cell) => { const [x, y] = at(cell); return [x - 8, y - 8, x + 8, y + 8]; });
  const found = new Map();
  for (const cell of [...list].sort((a, b) => a.error - b.error)) {
    const [x, y] = at(cell);
    const long = title(cell.m).length * 6.4;
    const choices = {
      "bottom center": [x - long / 2, y + 7, x + long / 2, y + 22], "top center": [x - long / 2, y - 22, x + long / 2, y - 7],
      "middle right": [x + 9, y - 8, x + 9 + long, y + 8], "middle left": [x - 9 - long, y - 8, x - 9, y + 8],
    };
    const own = list.indexOf(cell);
    const clash = (a) => taken.reduce((sum, b, n) => (n === own ? sum : sum + Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]))), 0)
      + (a[0] < -40 || a[2] > width + 20 ? 500 : 0);
    const [place, area] = Object.entries(choices).sort((a, b) => clash(a[1]) - clash(b[1]))[0];
    found.set(cell, place);
    taken.push(area);
  }
  return found;
}

function drawMaps() {
  const here = DATA.maps.filter((map) => DATA.records.g[map.run] === state.group && state.methods.has(DATA.records.m[map.run]));
  $("maps").hidden = !here.length;
  if (!here.length) return;
  const select = $("map-run");
  const before = select.value;
  select.replaceChildren(...here.map((map) => el("option", { value: map.run }, `${title(DATA.records.m[map.run])}, seed ${DATA.records.seed[map.run]} (${DATA.records.id[map.run]})`)));
  if (here.some((map) => String(map.run) === before)) select.value = before;
  const map = here.find((m) => String(m.run) === select.value);
  const classes = [...new Set(map.labels)];
  $("maps-note").textContent = `Class prototypes at the end of the run (${map.kind}), one colour per class. Distances between far groups mean little.`;
  const palette = PALETTE[theme()];
  plot("chart-maps", classes.map((label, n) => {
    const own = map.points.filter((_, k) => map.labels[k] === label);
    return { type: "scatter", mode: "markers", name: safe(label), x: own.map((p) => p[0]), y: own.map((p) => p[1]), meta: [map.run],
      marker: { size: 8, color: palette[n % 10], symbol: ["circle", "diamond", "square", "triangle-up"][Math.floor(n / 10) % 4], line: { color: css("--surface"), width: 1 } },
      hovertemplate: `class ${safe(label)}${from([map.run])}<extra></extra>` };
  }), { xaxis: { showticklabels: false, zeroline: false }, yaxis: { showticklabels: false, zeroline: false } }, `Scatter chart of ${map.points.length} prototypes of ${classes.length} classes`);
  altTable("alt-maps", "Prototypes", ["Class", "x", "y"], map.points.slice(0, 200).map((p, n) => [String(map.labels[n]), ...p]));
}
