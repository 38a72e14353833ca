// Timelines: what is shown of them, and how pointer, wheel, fingers and keys change that.

const MOST_LAYERS = 400; // to choose from

class Timeline {
  constructor(root) {
    this.root = root;
    this.data = JSON.parse(root.querySelector("script").textContent);
    this.canvas = root.querySelector("canvas");
    this.tip = root.querySelector(".tip");
    this.said = root.querySelector(".said");
    this.colours = this.data.kinds;
    this.names = Object.keys(this.colours);
    this.chosen = null;
    this.fingers = new Map();
  }

  async open() {
    this.tracks = await Promise.all(this.data.tracks.map(async track =>
      ({ ...track, rank: await unpackedRank(track.ranks[0], this.data.columns), origin: 0 })));
    this.fillSelects();
    this.listen();
    this.toLayer();
    new ResizeObserver(() => this.redraw()).observe(this.root);
  }

  fillSelects() {
    const option = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
    this.layerSelect = this.root.querySelector("select.layer");
    this.alignSelect = this.root.querySelector("select.align");
    this.root.querySelectorAll("select.rank").forEach((select, place) => {
      const track = this.tracks[place];
      select.replaceChildren(...track.ranks.map((rank, number) => option(rank.label, number)));
      select.addEventListener("change", async () => {
        track.rank = await unpackedRank(track.ranks[select.value], this.data.columns);
        this.chosen = null;
        this.align();
        this.redraw();
      });
    });
    const all = this.tracks.flatMap(track => track.rank.layers.map(([layer]) => layer));
    const layers = [...new Set(all)].sort((a, b) => a - b);
    const middle = Math.floor(layers.length / 2), each = Math.ceil(layers.length / MOST_LAYERS);
    const offered = layers.filter((_, place) => (place - middle) % each === 0);
    this.layerSelect.replaceChildren(...offered.map(layer => option(layer, layer)));
    if (layers.length) this.layerSelect.value = layers[middle];
    else this.layerSelect.closest("label").hidden = true;
    this.layerSelect.addEventListener("change", () => this.toLayer());
    this.alignSelect?.addEventListener("change", () => { this.align(); this.toLayer(); });
  }

  span(track) {
    const layer = Number(this.layerSelect.value);
    return track.rank.layers.find(one => one[0] === layer) || [layer, 0, track.end];
  }

  // Two runs lie one above the other from the begin of their layer, or from that of the run; one run is shown as it is.
  align() {
    const byLayer = this.alignSelect?.value === "layer";
    for (const track of this.tracks) track.origin = byLayer ? this.span(track)[1] : 0;
  }

  toLayer() {
    this.align();
    const ends = this.tracks.map(track => this.span(track).slice(1).map(time => time - track.origin));
    const from = Math.min(...ends.map(one => one[0])), to = Math.max(...ends.map(one => one[1]));
    this.show(from - (to - from) * 0.03, to + (to - from) * 0.03);
  }

  limits() {
    const from = Math.min(...this.tracks.map(track => -track.origin));
    return [from, Math.max(...this.tracks.map(track => track.end - track.origin))];
  }

  whole() {
    const [from, to] = this.limits();
    this.show(from, to);
  }

  // Shows from a time to a time, kept within the run and no nearer than some nanoseconds.
  show(from, to) {
    const [first, last] = this.limits(), room = (last - first) * 0.03 + 1;
    const span = Math.min(Math.max(to - from, 20), last - first + 2 * room);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - span / 2, first - room), last + room - span);
    this.to = this.from + span;
    this.redraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const step = (this.to - this.from) * share;
    this.show(this.from + step, this.to + step);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    const wide = this.root.clientWidth - 2;
    if (wide <= 0 || this.from === undefined) return;
    const layout = this.layout = laidOut(this.tracks), sharp = devicePixelRatio || 1, { canvas } = this;
    canvas.style.height = `${layout.height}px`;
    canvas.width = Math.round(wide * sharp);
    canvas.height = Math.round(layout.height * sharp);
    const context = canvas.getContext("2d"), colours = theme();
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.textBaseline = "middle";
    context.font = `12px ${colours.sans}`;
    const left = Math.min(110, Math.max(56, wide * 0.12)), view = { from: this.from, to: this.to, left };
    view.scale = (wide - left) / (this.to - this.from);
    this.view = view;
    const pen = this.pen(context, wide, colours);
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, wide, layout.height);
    drawAxis(pen, view, this.data.unit_ps, layout.height);
    for (const place of layout.places) this.drawTrack(pen, place, view);
    this.drawChosen(context, colours, view);
    this.root.dataset.from = this.from;
    this.root.dataset.to = this.to;
  }

  pen(context, width, colours) {
    const palette = this.names.map(name => this.colours[name]);
    return { context, width, theme: colours, colours: palette, inks: palette.map(inkOn), wait: this.data.wait,
      hatched: hatch(context, this.data.wait, 1.6, 6), stripes: hatch(context, "rgb(255 255 255 / 38%)", 2.2, 8) };
  }

  drawTrack(pen, { track, head, layers, lanes }, view) {
    const { context, theme: colours } = pen;
    context.fillStyle = colours.ink;
    context.font = `600 12px ${colours.sans}`;
    context.fillText(`${track.title}, ${track.rank.label}`, 6, head + HEAD / 2, pen.width - 12);
    context.font = `12px ${colours.sans}`;
    pen.kinds = track.rank.texts.map(one => this.names.indexOf(one[1]));
    if (layers >= 0) drawLayers(pen, track, layers, view);
    for (const { lane, y } of lanes) {
      context.fillStyle = colours.grid;
      context.fillRect(0, y + LANE - GAP + 1, pen.width, 0.5);
      context.fillStyle = colours.quiet;
      context.fillText(lane.name, 6, y + (LANE - GAP) / 2 + 1, view.left - 10);
      drawLane(pen, track, lane, y, view);
    }
  }

  drawChosen(context, colours, view) {
    if (!this.chosen) return;
    const { track, row, y } = this.placeOfChosen();
    const x0 = Math.max(view.left, view.left + (track.rank.start[row] - track.origin - view.from) * view.scale);
    const x1 = view.left + (endOf(track.rank, row) - track.origin - view.from) * view.scale;
    if (x1 < view.left) return;
    context.strokeStyle = colours.focus;
    context.lineWidth = 3;
    context.strokeRect(x0 - 1.5, y - 1.5, Math.max(x1 - x0, 2) + 3, LANE - GAP + 3);
  }

  placeOfChosen() {
    const { track, row } = this.chosen, place = this.layout.places.find(one => one.track === track);
    const at = place.lanes.find(({ lane }) => row >= lane.first && row < lane.last);
    return { track, row, y: at.y, lane: at.lane };
  }

  // What lies at a point of the canvas; null: nothing.
  under(x, y) {
    if (x < this.view.left) return null;
    const time = this.view.from + (x - this.view.left) / this.view.scale;
    for (const { track, lanes } of this.layout.places) {
      const found = lanes.find(one => y >= one.y && y < one.y + LANE);
      const row = found ? rowAt(track.rank, found.lane, time + track.origin, 3 / this.view.scale) : -1;
      if (row >= 0) return { track, row };
    }
    return null;
  }

  fillWith(place, { track, row }) {
    const [name, ...lines] = aboutTask(track.rank, row, this.data.unit_ps);
    const made = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
    place.replaceChildren(made("b", name), ...lines.map(text => made("div", text)));
  }

  hover(x, y) {
    const found = this.under(x, y);
    this.tip.hidden = !found;
    if (!found) return;
    this.fillWith(this.tip, found);
    const room = this.canvas.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(2, Math.min(x + 14, room))}px`;
    this.tip.style.top = `${y + 18}px`;
  }

  choose(found) {
    this.chosen = found;
    if (!found) return;
    this.fillWith(this.said, found);
    const { track, row } = found, span = this.to - this.from;
    const start = track.rank.start[row] - track.origin, end = endOf(track.rank, row) - track.origin;
    if (start < this.from || end > this.to) this.show((start + end - span) / 2, (start + end + span) / 2);
    else this.redraw();
  }

  // The next task of the stream, or the task of the next stream at the same time.
  step(along, across) {
    if (!this.chosen) return this.choose(this.firstShown());
    const { track, row } = this.chosen, { lane } = this.placeOfChosen();
    if (along) return this.choose({ track, row: Math.min(Math.max(row + along, lane.first), lane.last - 1) });
    const all = this.layout.places.flatMap(one => one.lanes.map(its => ({ track: one.track, lane: its.lane })));
    const next = all[all.findIndex(one => one.lane === lane) + across];
    if (!next) return undefined;
    const time = track.rank.start[row] - track.origin + next.track.origin;
    const there = firstAfter(next.track.rank, next.lane, time);
    return this.choose({ track: next.track, row: Math.min(there, next.lane.last - 1) });
  }

  firstShown() {
    const track = this.tracks[0], lane = track.rank.lanes[0];
    if (!lane) return null;
    return { track, row: Math.min(firstAfter(track.rank, lane, this.from + track.origin), lane.last - 1) };
  }

  listen() {
    const { canvas } = this, place = event => { const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("wheel", event => {
      event.preventDefault();
      const [x] = place(event), at = this.view.from + (x - this.view.left) / this.view.scale;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        this.move(Math.sign(event.deltaX || event.deltaY) * 0.08);
      } else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), at);
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      canvas.setPointerCapture(event.pointerId);
      this.fingers.set(event.pointerId, place(event));
      this.dragged = 0;
    });
    canvas.addEventListener("pointermove", event => this.pointed(event, place(event)));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, event => {
        if (this.fingers.delete(event.pointerId) && name === "pointerup" && this.dragged < 4) {
          this.choose(this.under(...place(event)) || this.chosen);
        }
        canvas.classList.remove("moving");
      });
    }
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", event => this.pressed(event));
    const on = (name, act) => this.root.querySelector(name).addEventListener("click", act);
    on(".do-in", () => this.zoom(0.5));
    on(".do-out", () => this.zoom(2));
    on(".do-whole", () => this.whole());
  }

  // One finger or the pressed pointer drags, two fingers zoom about the middle between them, else a task is told.
  pointed(event, [x, y]) {
    const before = this.fingers.get(event.pointerId);
    if (!before) return this.hover(x, y);
    this.tip.hidden = true;
    const time = at => this.view.from + (at - this.view.left) / this.view.scale;
    if (this.fingers.size === 2) {
      const other = [...this.fingers].find(([id]) => id !== event.pointerId)[1];
      const wide = Math.max(Math.abs(x - other[0]), 8), was = Math.max(Math.abs(before[0] - other[0]), 8);
      this.zoom(was / wide, time((x + other[0]) / 2));
      this.dragged = 99;
    } else {
      const shift = (before[0] - x) / this.view.scale;
      this.dragged += Math.abs(before[0] - x);
      this.canvas.classList.add("moving");
      this.show(this.from + shift, this.to + shift);
    }
    this.fingers.set(event.pointerId, [x, y]);
    return undefined;
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const plain = { ArrowLeft: () => this.move(-0.1), ArrowRight: () => this.move(0.1), ArrowUp: () => this.zoom(0.7),
      ArrowDown: () => this.zoom(1 / 0.7), "+": () => this.zoom(0.7), "=": () => this.zoom(0.7),
      "-": () => this.zoom(1 / 0.7), _: () => this.zoom(1 / 0.7), Home: () => this.whole(), End: () => this.toLayer() };
    const shifted = { ArrowLeft: () => this.step(-1, 0), ArrowRight: () => this.step(1, 0),
      ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1) };
    const act = (event.shiftKey && shifted[event.key]) || plain[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
