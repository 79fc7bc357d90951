// Use over time, as lines with a scale; the same numbers are in a table below them.

import { clock, h, mebibytes, percent, renew, s, table } from './dom.js';

const WIDTH = 360;
const HEIGHT = 120;
const LEFT = 34;
const BOTTOM = 18;
const TOP = 8;
const RIGHT = 8;

export function charts(place, history) {
  const { points } = history;
  renew(place, [points.length, points.at(-1)], () => {
    if (points.length < 2) {
      return h('p', { class: 'hint' }, `The scheduler has just started. A point is added every ${history.everySeconds} seconds.`);
    }
    const most = Math.max(4, ...points.map((point) => point.waiting));
    return [
      chart('Compute held', points, (point) => percent(point.coresHeld, point.cores), 100, ' %', 'a'),
      chart('Memory held', points, (point) => percent(point.memoryHeldMiB, point.memoryMiB), 100, ' %', 'b'),
      chart('Pods waiting', points, (point) => point.waiting, Math.ceil(most / 4) * 4, '', 'c'),
    ];
  });
}

function chart(title, points, value, top, unit, kind) {
  const [first, last] = [points[0].at, points.at(-1).at];
  const x = (at) => LEFT + ((WIDTH - LEFT - RIGHT) * (at - first)) / Math.max(1, last - first);
  const y = (number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - number / top);
  const values = points.map(value);
  const [now, low, high] = [values.at(-1), Math.min(...values), Math.max(...values)];
  const path = points.map((point, at) => `${at === 0 ? 'M' : 'L'}${x(point.at).toFixed(1)} ${y(values[at]).toFixed(1)}`).join('');
  const area = `${path}L${x(last).toFixed(1)} ${y(0)}L${x(first).toFixed(1)} ${y(0)}Z`;
  const steps = [0, top / 2, top];
  const said = `${title}: now ${now}${unit}, between ${low}${unit} and ${high}${unit} since ${clock(first)}.`;
  return h('figure', { class: `chart chart-${kind}` },
    h('figcaption', {}, h('span', { class: 'chart-title' }, title), h('span', { class: 'chart-now' }, `${now}${unit}`),
      h('span', { class: 'chart-range' }, `${low} to ${high}${unit}`)),
    s('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': said },
      steps.map((step) => [
        s('line', { class: 'grid', x1: LEFT, x2: WIDTH - RIGHT, y1: y(step), y2: y(step) }),
        s('text', { class: 'scale', x: LEFT - 6, y: y(step) + 4, 'text-anchor': 'end' }, String(step)),
      ]),
      s('path', { class: 'area', d: area }), s('path', { class: 'line', d: path }),
      s('circle', { class: 'end', cx: x(last), cy: y(now), r: 3.5 }),
      s('text', { class: 'scale', x: LEFT, y: HEIGHT - 3 }, clock(first)),
      s('text', { class: 'scale', x: WIDTH - RIGHT, y: HEIGHT - 3, 'text-anchor': 'end' }, clock(last))));
}

export function pointsTable(place, history) {
  // A row for every five minutes, and the newest.
  const every = Math.max(1, Math.round(300 / history.everySeconds));
  const { points } = history;
  const kept = points.filter((_, at) => (points.length - 1 - at) % every === 0).reverse();
  const rows = kept.map((point) => [
    clock(point.at), `${percent(point.coresHeld, point.cores)} %`,
    `${mebibytes(point.memoryHeldMiB)} of ${mebibytes(point.memoryMiB)}`,
    `${point.cardsHeld} of ${point.cards}`, String(point.pods), String(point.waiting), String(point.hot),
  ]);
  const columns = [['Time'], ['Compute held', 'number'], ['Memory held', 'number'], ['Cards held', 'number'],
    ['Pods', 'number'], ['Waiting', 'number'], ['Hot cards', 'number']];
  renew(place, rows, () => table('Use over time', columns, rows));
}
