// Charts by plotly in the colours of the page, and the switch between light and dark.

// What every chart has of the page; what the chart itself says comes first.
function themed(layout, colours) {
  const axis = given => ({ gridcolor: colours.grid, zerolinecolor: colours.line, linecolor: colours.line,
    automargin: true, ...given, title: given.title && { ...given.title, font: { color: colours.quiet, size: 12 } } });
  const made = { ...layout, autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.sans, size: 12, color: colours.ink }, margin: { l: 8, r: 16, t: 34, b: 44 }, bargap: 0.25,
    hoverlabel: { bgcolor: colours.ground, bordercolor: colours.quiet,
      font: { color: colours.ink, family: colours.sans }, align: "left", namelength: -1 },
    legend: { orientation: "h", maxheight: 2000, traceorder: "normal", x: 0, y: 1, xanchor: "left", yanchor: "bottom" },
  };
  for (const name of Object.keys(made).filter(one => /^[xy]axis\d*$/.test(one))) made[name] = axis(made[name]);
  made.xaxis ||= axis({});
  made.yaxis ||= axis({});
  made.shapes = (layout.shapes || []).map(one => ({ ...one, line: { color: colours.quiet, ...one.line } }));
  made.annotations = (layout.annotations || []).map(one => ({ font: { color: colours.quiet, size: 12 }, ...one }));
  return made;
}

// On a narrow page names of bars are broken behind dots and blanks, and the legend has rows of its own.
function fitted(root, place, made, wide) {
  root.height ||= parseFloat(place.style.height);
  const entries = made.showlegend === false ? [] : root.given.data.filter(one => one.showlegend !== false);
  const across = Math.max(1, Math.floor(wide / Math.max(...entries.map(one => 60 + 7 * one.name.length), 1)));
  place.style.height = `${root.height + Math.max(0, Math.ceil(entries.length / across) - 1) * 19}px`;
  if (wide >= 560 || made.yaxis.type !== "category") return made;
  const names = [...new Set(root.given.data.flatMap(one => one.y))];
  const text = names.map(name => String(name).replace(/(.{14,}?[._,] ?| · )(?=.{4})/g, "$1<br>"));
  return { ...made, yaxis: { ...made.yaxis, tickfont: { size: 10 }, tickvals: names, ticktext: text } };
}

// Lines that have no colour of their own are those of the page.
function inked(traces, colours) {
  return traces.map(one => (one.role === "roof"
    ? { ...one, line: { ...one.line, color: colours.quiet }, textfont: { color: colours.quiet, size: 11 } } : one));
}

function drawChart(root) {
  const place = root.querySelector(".plot");
  if (!place.clientWidth || !window.Plotly) return undefined; // in what is folded
  root.given ||= JSON.parse(root.querySelector("script").textContent);
  const colours = theme(), wide = place.clientWidth;
  const layout = fitted(root, place, themed(root.given.layout, colours), wide);
  return Plotly.react(place, inked(root.given.data, colours), layout, {
    responsive: true, displaylogo: false, displayModeBar: "hover",
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] });
}

const charts = () => (window.Plotly ? [...document.querySelectorAll(".chart")] : []);

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  repaint();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", event => {
  document.documentElement.dataset.theme = event.matches ? "dark" : "light";
  repaint();
});
for (const folded of document.querySelectorAll("details")) {
  folded.addEventListener("toggle", () => folded.querySelectorAll(".chart").forEach(drawChart));
}

let timelines = [];

function repaint() {
  charts().forEach(drawChart);
  timelines.forEach(one => one.redraw());
}

// Plotly is carried compressed.
async function loadPlotly() {
  const carried = document.getElementById("plotly"), script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await unpacked(carried.textContent));
  document.head.append(script);
  carried.remove();
}

// The timeline first, for to read plotly takes a second; then chart by chart.
(async () => {
  const { dataset } = document.documentElement;
  timelines = [...document.querySelectorAll(".timeline")].map(root => new Timeline(root));
  for (const one of timelines) await one.open();
  dataset.timelines = Math.round(performance.now());
  await new Promise(resolve => setTimeout(resolve, 30)); // in which the browser paints
  await loadPlotly();
  for (const root of charts()) await drawChart(root);
  dataset.drawn = Math.round(performance.now());
})();
