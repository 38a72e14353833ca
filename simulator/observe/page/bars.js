// Bars of a timeline: unpacked from what the page carries (see bars.py), and found by place and time.

async function unpacked(text) {
  const signs = atob(text), bytes = new Uint8Array(signs.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = signs.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A column as whole numbers: its bytes lie in four planes.
function numbers(planes, place, rows) {
  const made = new Int32Array(rows), at = place * rows * 4;
  for (let row = 0; row < rows; row++) {
    made[row] = planes[at + row] | (planes[at + rows + row] << 8) | (planes[at + 2 * rows + row] << 16)
      | (planes[at + 3 * rows + row] << 24);
  }
  return made;
}

// A rank with its columns and lanes; a lane is a stream, its rows first to last in order of time.
async function unpackedRank(given, columns) {
  const planes = await unpacked(given.packed), rank = { ...given, lanes: [] };
  delete rank.packed;
  columns.forEach((name, place) => { rank[name] = numbers(planes, place, given.rows); });
  rank.start = Float64Array.from(summed(rank.start));
  let first = 0;
  for (const [name, count] of given.streams) {
    rank.lanes.push({ name, first, last: first + count });
    first += count;
  }
  return rank;
}

function summed(differences) {
  const made = new Uint32Array(differences.length);
  let at = 0;
  for (let row = 0; row < made.length; row++) made[row] = at = (at + differences[row]) >>> 0;
  return made;
}

const lengthOf = (rank, row) => rank.length[row] >>> 0;
const waitedOf = (rank, row) => rank.waited[row] >>> 0;
const endOf = (rank, row) => rank.start[row] + lengthOf(rank, row);

// The first row of a lane that ends after a time; the rows of a lane follow each other.
function firstAfter(rank, lane, time) {
  let low = lane.first, high = lane.last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (endOf(rank, middle) > time) high = middle; else low = middle + 1;
  }
  return low;
}

// The row at a time: at work, or waiting; nearest within `reach` where bars are narrow; -1: none.
function rowAt(rank, lane, time, reach) {
  const row = firstAfter(rank, lane, time);
  let best = -1, distance = reach;
  for (const one of [row - 1, row, row + 1]) {
    if (one < lane.first || one >= lane.last) continue;
    const away = Math.max(rank.start[one] - waitedOf(rank, one) - time, time - endOf(rank, one), 0);
    if (away < distance || (away === 0 && distance > 0)) { best = one; distance = away; }
  }
  return best;
}

// Five digits, and the unit that fits; of an instant so many more as tell it to a thousandth of a length.
function timeText(units, unitPs, lengthUnits = Infinity) {
  const ps = units * unitPs, finestPs = Math.max(lengthUnits * unitPs / 1000, 1);
  for (const [name, size] of [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3]]) {
    if (Math.abs(ps) < size * 0.99995) continue;
    const digits = Math.ceil(Math.log10(Math.abs(ps) / finestPs)) + 1;
    return `${Number((ps / size).toPrecision(Math.max(5, Math.min(digits, 15))))} ${name}`;
  }
  return "0 ns";
}

// What a task waited for that was ready, by the place in WHY of waiting.py, and one.
function whyText(rank, row) {
  const by = rank.by[row] > 0 ? `rank ${rank.by[row] - 1}` : "a rank";
  const said = ["", "", "", ` for ${by}, the last of its peers`, ` for what ${by} sets or writes`, " for cores"];
  return said[rank.why[row]] || "";
}

// What there is to say of a task, line by line; the first is its name.
function aboutTask(rank, row, unitPs) {
  const [name, kind, engine] = rank.texts[rank.what[row]];
  const lane = rank.lanes.find(one => row >= one.first && row < one.last);
  const place = [`rank ${rank.rank}`, `stream ${lane.name}`];
  if (rank.layer[row] >= 0) place.push(`layer ${rank.layer[row]}`);
  if (rank.micro_batch[row] >= 0) place.push(`micro-batch ${String.fromCharCode(65 + rank.micro_batch[row] % 26)}`);
  const lines = [name, `${kind} on ${engine}; ${place.join(", ")}; task ${rank.task[row]}`,
    `works ${timeText(lengthOf(rank, row), unitPs)}, from `
    + `${timeText(rank.start[row], unitPs, lengthOf(rank, row))} to `
    + `${timeText(endOf(rank, row), unitPs, lengthOf(rank, row))}; bound by ${rank.bounds[rank.bound[row]]}`];
  if (waitedOf(rank, row) > 0) {
    lines.push(`waited ${timeText(waitedOf(rank, row), unitPs)} after it was ready${whyText(rank, row)}`);
  }
  const still = [[rank.event[row], "another stream"], [rank.host[row], "the host to launch it"]].filter(one => one[0]);
  if (still.length) {
    lines.push(`before, its stream waited ${still.map(([time, who]) => `${timeText(time >>> 0, unitPs)} for ${who}`)
      .join(" and ")}`);
  }
  if (rank.awaited[row] > 0) lines.push(`came after ${rank.texts[rank.what[rank.awaited[row] - 1]][0]}`);
  if (rank.critical[row]) lines.push("on the critical path");
  return lines;
}
