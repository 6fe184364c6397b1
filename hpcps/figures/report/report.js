"use strict";
// Draws the charts of the report with plotly.js, and filters charts and tables by line and panel.

const sections = JSON.parse(document.getElementById("data").textContent);
// Only these buttons: by default there is one that uploads the data of a chart to a server of plotly.
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], plotlyServerURL: "" };
const MARKERS = 8;

/** Returns a text that plotly shows as it is: plotly interprets some tags. */
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** Returns the texts of the pop-up of each point of a line. */
function popups(line, values, x, xTitle, yTitle) {
  return values.mean.map((mean, n) => {
    if (mean === null) return "";
    const rows = [`<b>${plain(line.label)}</b>`, `${plain(xTitle)}: ${x[n]}`, `${plain(yTitle)}: ${mean}`];
    if (values.low) rows.push(`range of ${line.seeds} seeds: ${values.low[n]} to ${values.high[n]}`);
    if (line.remark) rows.push(plain(line.remark));
    if (line.diverged !== null && n >= line.diverged) {
      rows.push(line.seeds > 1 ? `${line.diverged_seeds} of ${line.seeds} seeds diverged` : "diverged");
    }
    if (line.stalled_seeds && n === values.mean.length - 1) {
      rows.push(line.seeds > 1 ? `${line.stalled_seeds} of ${line.seeds} seeds stalled` : "stalled");
    }
    return rows.join("<br>");
  });
}

/** Returns the traces of one line: its band, its mean, its cross and its circle. */
function traces(section, line, xName, yName) {
  const x = line.x[xName], values = line.y[yName], style = section.styles[line.line];
  if (!x || !values) return [];
  const text = popups(line, values, x, section.x[xName], section.y[yName]);
  const shared = { name: plain(line.label), showlegend: false };
  if (section.kind === "bars") {
    const bar = { ...shared, type: "bar", x, y: values.mean, marker: { color: style.color }, text, hoverinfo: "text", textposition: "none" };
    if (values.low) {
      const up = values.high.map((high, n) => high - values.mean[n]), down = values.low.map((low, n) => values.mean[n] - low);
      bar.error_y = { type: "data", symmetric: false, array: up, arrayminus: down, thickness: 1 };
    }
    return [bar];
  }
  const found = [];
  if (values.low) {
    const known = [...x.keys()].filter((n) => values.low[n] !== null);
    const there = known.map((n) => x[n]), back = there.slice().reverse();
    const edge = [...known.map((n) => values.high[n]), ...known.slice().reverse().map((n) => values.low[n])];
    found.push({ ...shared, x: [...there, ...back], y: edge, fill: "toself", fillcolor: style.color, opacity: 0.15,
      line: { width: 0 }, mode: "lines", hoverinfo: "skip" });
  }
  found.push({ ...shared, x, y: values.mean, mode: style.symbol ? "lines+markers" : "lines", text, hoverinfo: "text",
    cliponaxis: false, line: { color: style.color, width: style.width, dash: style.dash },
    marker: { color: style.color, symbol: style.symbol || "circle", size: 6, maxdisplayed: MARKERS } });
  if (line.diverged !== null && values.mean[line.diverged] !== null) {
    found.push({ ...shared, x: [x[line.diverged]], y: [values.mean[line.diverged]], mode: "markers", hoverinfo: "text",
      text: [text[line.diverged]], cliponaxis: false, marker: { color: style.color, symbol: "x-thin", size: 11, line: { color: style.color, width: 3 } } });
  }
  const end = values.mean.length - 1;
  if (line.stalled_seeds && values.mean[end] !== null) {
    found.push({ ...shared, x: [x[end]], y: [values.mean[end]], mode: "markers", hoverinfo: "text",
      text: [text[end]], cliponaxis: false, marker: { color: style.color, symbol: "circle-open", size: 13, line: { color: style.color, width: 2 } } });
  }
  return found;
}

/** Returns the largest value of an axis over all lines of a section, so that its charts share their axes. */
function largest(section, axis, name) {
  const found = section.panels.flatMap((panel) => panel.lines).flatMap((line) =>
    axis === "x" ? line.x[name] || [] : (line.y[name] || {}).high || (line.y[name] || {}).mean || []);
  return found.reduce((most, value) => Math.max(most, value), 0) || 1;
}

function chosen(name) {
  const boxes = [...document.querySelectorAll(`.filters input[name="${name}"]`)];
  return (value) => boxes.every((box) => box.value !== value || box.checked);
}

function draw(holder, section) {
  const choice = (axis) => (holder.querySelector(`select[data-axis="${axis}"]`) || { value: Object.keys(section[axis])[0] }).value;
  const x = choice("x"), y = choice("y"), isShown = chosen("line");
  const bars = section.kind === "bars", reach = largest(section, "x", x);
  const layout = {
    margin: { l: 48, r: 14, t: 26, b: 42 }, font: { size: 12 }, hovermode: "closest", barmode: "group",
    hoverlabel: { align: "left", bgcolor: "#ffffff", font: { color: "#1c2430" } },
    xaxis: { title: { text: plain(section.x[x]) }, range: bars ? [-0.6, reach + 0.6] : [0, reach * 1.02], zeroline: false },
    yaxis: { title: { text: section.percent ? "%" : plain(section.y[y]) }, range: [0, section.percent ? 100 : largest(section, "y", y) * 1.05], zeroline: false },
  };
  holder.querySelectorAll(".chart").forEach((chart, n) => {
    const lines = section.panels[n].lines.filter((line) => isShown(line.line));
    chart.hidden = !section.panels[n].lines.length;
    if (!chart.hidden) Plotly.react(chart, lines.flatMap((line) => traces(section, line, x, y)), structuredClone(layout), CONFIG);
  });
}

function drawAll() {
  const isLineShown = chosen("line"), isPanelShown = chosen("panel");
  document.querySelectorAll("figure[data-panel], .accuracy [data-panel]").forEach((each) => { each.hidden = !isPanelShown(each.dataset.panel); });
  document.querySelectorAll(".accuracy tr[data-line]").forEach((row) => { row.hidden = !isLineShown(row.dataset.line); });
  document.querySelectorAll(".charts").forEach((holder) => draw(holder, sections[holder.dataset.section]));
}

document.querySelectorAll(".filters input").forEach((box) => box.addEventListener("change", drawAll));
document.querySelectorAll(".charts").forEach((holder) => {
  holder.querySelectorAll("select").forEach((select) => select.addEventListener("change", () => draw(holder, sections[holder.dataset.section])));
});
drawAll();
