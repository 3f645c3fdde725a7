"use strict";
/* What is chosen, and small tools every part uses. */
const DATA = JSON.parse(document.getElementById("report-data").textContent);
const $ = (id) => document.getElementById(id);

/* A palette that stays apart for colour-blind readers, light and dark; long lists also change the dash. */
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#7b4fa3", "#b8860b", "#2e8b57", "#c2447d", "#4a90b8", "#8c564b", "#5f6b1a", "#3d3d8f"],
  dark: ["#5ab0e8", "#f08a4b", "#b79be0", "#e0b84a", "#63c48c", "#f08bb8", "#8fd0e8", "#c99a8c", "#b5c25a", "#9a9af0"],
};
const FIXED = {
  source: { light: "#6b7480", dark: "#98a2b0" },
  bn: { light: "#9aa3ad", dark: "#6f7986" },
  slomo_fast: { light: "#0a8a80", dark: "#4fd1c0" },
  slomo_fast_star: { light: "#064e52", dark: "#b5f2e8" },
};
const DASHES = ["solid", "dash", "dot", "dashdot"];
const STYLE = [];
{
  let next = 0;
  DATA.methods.forEach((method) => {
    const fixed = method.plain && FIXED[method.name];
    if (fixed) STYLE.push({ ...fixed, dash: method.name === "source" ? "dot" : "solid" });
    else {
      const n = next++;
      STYLE.push({ light: PALETTE.light[n % 10], dark: PALETTE.dark[n % 10], dash: DASHES[Math.floor(n / 10) % 4] });
    }
  });
}

const state = { group: 0, methods: new Set(), seed: "mean" };
const theme = () => document.documentElement.dataset.theme;
const color = (m) => STYLE[m][theme()];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const group = () => DATA.groups[state.group];
const cells = () => group().cells.filter((cell) => state.methods.has(cell.m));
const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−"));
const words = (name) => name.replaceAll("_", " ");
const many = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/* Elements by hand: text always goes in as text, so nothing in a record can become markup. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, item] of Object.entries(value)) node.style.setProperty(key, item);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
/* Plotly reads a little markup in its labels; records must not write any. */
const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function recordNames(rows, limit = 3) {
  const ids = rows.map((row) => DATA.records.id[row]);
  const more = ids.length > limit ? ` and ${ids.length - limit} more` : "";
  return ids.slice(0, limit).join(", ") + more;
}
