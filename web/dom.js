// Making and changing elements. Texts only ever become text: names of pods are chosen by others.

const SVG = 'http://www.w3.org/2000/svg';

/** An element: h('p', {class: 'x', onclick: f}, 'text', child). */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for pictures. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function show(element, shown) {
  element.hidden = !shown;
}

/**
 * Puts new children into an element, unless they are made from the same data as before. Whatever
 * had the focus has it again, if something of its key is still there.
 */
export function renew(element, data, make) {
  const mark = JSON.stringify(data);
  if (element.mark === mark) return;
  element.mark = mark;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  element.replaceChildren(...[make()].flat(9).filter(Boolean));
  if (!focused) return;
  for (const candidate of element.querySelectorAll('[data-key]')) {
    if (candidate.dataset.key === focused) return candidate.focus({ preventScroll: true });
  }
}

/** A table with real heads: columns of [title, class], rows of cells; the first cell names its row. */
export function table(caption, columns, rows) {
  return [
    h('caption', { class: 'out-of-sight' }, caption),
    h('thead', {}, h('tr', {}, columns.map(([title, kind]) => h('th', { scope: 'col', class: kind }, title)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, column) => (column === 0
      ? h('th', { scope: 'row' }, cell)
      : h('td', { class: columns[column][1] }, cell)))))),
  ];
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString('en')} ${number === 1 ? one : many}`;

export function mebibytes(amount) {
  if (amount === 0) return '0';
  if (amount < 1024) return `${amount} MiB`;
  const gibibytes = amount / 1024;
  const digits = gibibytes >= 100 || Number.isInteger(gibibytes) ? 0 : 1;
  return `${gibibytes.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits })} GiB`;
}

export const percent = (part, whole) => (whole > 0 ? Math.round((100 * part) / whole) : 0);

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
