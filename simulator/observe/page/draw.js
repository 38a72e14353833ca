// Lanes of a timeline on a canvas: bars where they can be seen, columns of pixels where they cannot.

const HEAD = 22, LANE = 28, LAYERS = 17, AXIS = 22, GAP = 3, NARROW = 0.9;

function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000000" : "#ffffff";
}

function theme() {
  const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue(name).trim();
  const names = ["ground", "panel", "ink", "quiet", "line", "grid", "focus", "sans"];
  return Object.fromEntries(names.map(name => [name, get(`--${name}`)]));
}

// Lines across, of a colour: waits, and odd micro-batches.
function hatch(context, colour, width, gap) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = gap;
  const on = tile.getContext("2d");
  on.strokeStyle = colour;
  on.lineWidth = width;
  for (const shift of [-gap, 0, gap]) {
    on.beginPath(); on.moveTo(shift, gap); on.lineTo(shift + gap, 0); on.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// Where tracks and lanes lie, from the top; height: of all.
function laidOut(tracks) {
  let y = AXIS;
  const places = [];
  for (const track of tracks) {
    const head = y;
    y += HEAD;
    const layers = track.rank.layers.length ? y : -1;
    if (layers >= 0) y += LAYERS;
    const lanes = track.rank.lanes.map(lane => { const at = y; y += LANE; return { lane, y: at }; });
    places.push({ track, head, layers, lanes, end: y });
    y += 8;
  }
  return { places, height: y };
}

function drawLane(pen, track, lane, y, view) {
  const { rank } = track, { context, colours, kinds } = pen, high = LANE - GAP;
  const begin = view.from + track.origin, until = view.to + track.origin, { left, scale } = view;
  let pixel = -1, best = -1, most = 0, full = 0, sums = new Map();
  const flush = () => {
    if (pixel < 0) return;
    context.globalAlpha = Math.min(1, 0.35 + 0.65 * full);
    context.fillStyle = best < 0 ? pen.wait : colours[best];
    context.fillRect(pixel, y, 1, high);
    context.globalAlpha = 1;
    pixel = -1; best = -1; most = 0; full = 0; sums = new Map();
  };
  for (let row = firstAfter(rank, lane, begin); row < lane.last; row++) {
    const start = rank.start[row], waited = waitedOf(rank, row);
    if (start - waited >= until) break;
    const x0 = left + (start - begin) * scale, x1 = left + (endOf(rank, row) - begin) * scale;
    const kind = kinds[rank.what[row]];
    if (x1 - (x0 - waited * scale) < NARROW) {
      const at = Math.max(left, Math.floor(x0));
      if (at !== pixel) { flush(); pixel = at; }
      const sum = (sums.get(kind) || 0) + (x1 - x0);
      sums.set(kind, sum);
      full += x1 - x0;
      if (sum > most || best < 0) { most = sum; best = kind; }
      continue;
    }
    flush();
    if (waited) drawWait(pen, Math.max(left, x0 - waited * scale), y, Math.max(left, x0), high);
    drawBar(pen, rank, row, kind, Math.max(left, x0), Math.min(pen.width, x1), y, high);
  }
  flush();
}

function drawWait(pen, x0, y, x1, high) {
  if (x1 - x0 < 0.5) return;
  pen.context.fillStyle = x1 - x0 < 3 ? pen.wait : pen.hatched;
  pen.context.fillRect(x0, y + 3, x1 - x0, high - 6);
}

function drawBar(pen, rank, row, kind, x0, x1, y, high) {
  const { context, colours, inks } = pen, wide = Math.max(x1 - x0, NARROW), gap = wide > 4 ? 0.75 : 0;
  context.fillStyle = colours[kind];
  context.fillRect(x0, y, wide - gap, high);
  if (rank.micro_batch[row] % 2 === 1 && wide > 3) {
    context.fillStyle = pen.stripes;
    context.fillRect(x0, y, wide - gap, high);
  }
  if (rank.critical[row] && wide > 1.5) {
    context.fillStyle = pen.theme.ink;
    context.fillRect(x0, y, wide - gap, 2.5);
  }
  const letters = Math.floor((wide - 8) / 7);
  if (letters >= 3) {
    const name = rank.texts[rank.what[row]][0];
    context.fillStyle = inks[kind];
    context.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, x0 + 4, y + high / 2 + 1);
  }
}

function drawLayers(pen, track, y, view) {
  const { context } = pen, begin = view.from + track.origin, { left, scale } = view;
  const labels = [];
  const { layers } = track.rank;
  for (let place = 0; place < layers.length; place++) {
    const [layer, from] = layers[place], to = place + 1 < layers.length ? layers[place + 1][1] : layers[place][2];
    const x0 = left + (from - begin) * scale, x1 = left + (to - begin) * scale;
    if (x1 < left || x0 > pen.width) continue;
    const at = Math.max(left, x0);
    context.fillStyle = place % 2 ? pen.theme.grid : pen.theme.line;
    context.fillRect(at, y + 1, Math.min(pen.width, x1) - at, LAYERS - 4);
    const text = x1 - x0 > 64 ? `layer ${layer}` : `${layer}`, wide = context.measureText(text).width;
    labels.push({ text, at, wide, whole: x1 - x0 > wide + 6, fits: Math.min(pen.width, x1) - at > wide + 6 });
  }
  // Where most bands are too narrow for their numbers, these go beyond them, and some are left out.
  const crowded = labels.filter(one => one.whole).length < labels.length / 2;
  let free = -Infinity;
  context.fillStyle = pen.theme.ink;
  for (const { text, at, wide, fits } of labels) {
    if (at < free || at + wide > pen.width || !(fits || crowded)) continue;
    context.fillText(text, at + 3, y + LAYERS / 2 - 0.5);
    free = at + wide + 10;
  }
}

function drawAxis(pen, view, unitPs, height) {
  const { context } = pen, span = view.to - view.from, wanted = Math.max(2, (pen.width - view.left) / 110);
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  const step = [1, 2, 5, 10].map(one => one * power).find(one => one >= span / wanted);
  context.textAlign = "center";
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    const x = view.left + (at - view.from) * view.scale;
    context.fillStyle = pen.theme.grid;
    context.fillRect(x, AXIS - 4, 1, height - AXIS);
    context.fillStyle = pen.theme.quiet;
    const text = axisText(at, span, unitPs), half = context.measureText(text).width / 2;
    if (x + half < pen.width && x - half > view.left - 30) context.fillText(text, x, 10);
  }
  context.textAlign = "left";
}

// All labels of an axis in one unit, that of what is shown.
function axisText(units, span, unitPs) {
  const [name, size] = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]].find(one => span * unitPs >= one[1])
    || ["ns", 1e3];
  return `${Number((units * unitPs / size).toFixed(6)).toLocaleString("en")} ${name}`;
}
