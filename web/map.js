// The cluster: nodes, their cards, and who holds which share of each.

import { count, h, mebibytes, percent, renew, table } from './dom.js';

/** How many colours the style has for shares. */
const COLOURS = 8;
/** Up to so many cards are drawn share by share unless somebody wants it otherwise. */
export const MANY = 64;

/** Nodes with their cards, and cards with their shares, from the lists of the API. */
export function join(nodes, devices, shares) {
  const byNode = new Map(nodes.map((node) => [node.name, { ...node, cards: [] }]));
  const byId = new Map();
  for (const device of devices) {
    const card = { ...device, shares: [] };
    byId.set(`${device.node} ${device.uuid}`, card);
    byNode.get(device.node)?.cards.push(card);
  }
  for (const share of shares) byId.get(`${share.node} ${share.uuid}`)?.shares.push(share);
  for (const card of byId.values()) {
    card.shares.sort((a, b) => b.cores - a.cores || nameOf(a).localeCompare(nameOf(b)));
    colour(card.shares);
  }
  const all = [...byNode.values()];
  for (const node of all) node.cards.sort((a, b) => a.index - b.index);
  return all.sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }));
}

const nameOf = (share) => `${share.namespace}/${share.pod}`;

/** A pod has the same colour everywhere, unless another pod on the card has it already. */
function colour(shares) {
  const taken = new Set();
  for (const share of shares) {
    let wanted = 0;
    for (const letter of nameOf(share)) wanted = (wanted * 31 + letter.codePointAt(0)) % 9973;
    wanted %= COLOURS;
    for (let tries = 0; taken.has(wanted) && tries < COLOURS; tries += 1) wanted = (wanted + 1) % COLOURS;
    taken.add(wanted);
    share.colour = wanted;
  }
}

export const usedCores = (card) => card.cores - card.coresFree;
export const usedMemory = (card) => card.memoryMiB - card.memoryFreeMiB;
const health = (card) => (typeof card.health === 'string' ? card.health : JSON.stringify(card.health));

/** How full a card is: the larger of its two halves, in five steps. */
function level(card) {
  const full = Math.max(percent(usedCores(card), card.cores), percent(usedMemory(card), card.memoryMiB));
  if (full === 0) return 0;
  return Math.min(4, 1 + Math.floor(full / 25.01));
}

const WORDS = ['free', 'little used', 'half used', 'much used', 'full'];

function states(card) {
  const states = [];
  if (!card.sells) states.push(['bad', `out of service${card.health === 'healthy' ? '' : `: ${health(card)}`}`]);
  if (card.hot) states.push(['warm', 'busier than what was sold of it']);
  if (card.strangersMiB > 0) states.push(['warm', `${mebibytes(card.strangersMiB)} held by processes of no pod`]);
  return states;
}

function nodeStates(node) {
  const states = [];
  if (node.agent === 'stale') states.push(['bad', 'agent silent']);
  if (node.agent === 'never') states.push(['idle', 'no agent']);
  if (node.problem) states.push(['bad', node.problem]);
  if (node.pool) states.push(['idle', `pool ${node.pool}`]);
  return states;
}

const badges = (states) => states.map(([kind, text]) => h('span', { class: `badge ${kind}` }, text));

/** Draws all nodes into `place`; `heat` draws a square for each card. */
export function draw(place, nodes, heat, open) {
  place.classList.toggle('heat', heat);
  const known = new Map([...place.children].map((child) => [child.dataset.node, child]));
  const wanted = nodes.filter((node) => node.cards.length > 0 || node.problem);
  const elements = wanted.map((node) => {
    const element = known.get(node.name) ?? h('article', { class: 'node', 'data-node': node.name });
    renew(element, [node, heat], () => (heat ? drawHeat(node) : drawShares(node, open)));
    return element;
  });
  // Moved only if need be: an element that is put in again loses its focus.
  const same = elements.length === place.children.length && elements.every((element, at) => place.children[at] === element);
  if (!same) place.replaceChildren(...elements);
  if (elements.length === 0) {
    place.replaceChildren(h('p', { class: 'hint' }, 'No node reports a card. kubectl nanogpu doctor says what is missing.'));
  }
}

function head(node) {
  return h('header', { class: 'node-head' }, h('h3', {}, node.name), badges(nodeStates(node)),
    h('span', { class: 'node-count' }, count(node.cards.length, 'card')));
}

function drawShares(node, open) {
  return [head(node), h('ul', { class: 'cards' }, node.cards.map((card) => h('li', { class: 'card' }, drawCard(card, open))))];
}

function drawCard(card, open) {
  const cores = percent(usedCores(card), card.cores);
  return [
    h('div', { class: 'card-head' },
      h('span', { class: `level level-${level(card)}`, 'aria-hidden': 'true' }),
      h('h4', {}, `Card ${card.index}`), h('span', { class: 'model' }, card.model), badges(states(card))),
    bar('Compute', `${cores} %`, card.shares.map((share) => [share, share.whole ? 100 : (100 * share.cores) / card.cores])),
    bar('Memory', `${mebibytes(usedMemory(card))} of ${mebibytes(card.memoryMiB)}`,
      card.shares.map((share) => [share, share.whole ? 100 : (100 * share.memoryMiB) / card.memoryMiB]),
      (100 * card.strangersMiB) / card.memoryMiB),
    card.shares.length === 0
      ? h('p', { class: 'hint none' }, 'nobody holds a share')
      : h('ul', { class: 'shares' }, card.shares.map((share) => h('li', {}, chip(card, share, open)))),
  ];
}

/** A picture for those who see it; the words and the list beside it say the same. */
function bar(label, text, parts, strangers = 0) {
  const picture = h('div', { class: 'bar', 'aria-hidden': 'true' });
  for (const [share, width] of parts) {
    const part = h('span', { class: `part colour-${share.colour}`, 'data-pod': nameOf(share) });
    part.style.width = `${width}%`;
    picture.append(part);
  }
  if (strangers > 0) {
    const part = h('span', { class: 'part strangers' });
    part.style.width = `${strangers}%`;
    picture.append(part);
  }
  return h('div', { class: 'measure' }, h('span', { class: 'measure-label' }, label), picture, h('span', { class: 'measure-text' }, text));
}

function chip(card, share, open) {
  const what = share.whole ? 'whole card' : `${percent(share.cores, card.cores)} %, ${mebibytes(share.memoryMiB)}`;
  const light = (on) => () => {
    for (const part of document.querySelectorAll('.part[data-pod]')) {
      part.classList.toggle('lit', on && part.dataset.pod === nameOf(share));
    }
  };
  return h('button', {
    type: 'button', class: 'chip', 'data-key': `${card.uuid} ${nameOf(share)}`,
    onclick: () => open(share.namespace, share.pod),
    onmouseenter: light(true), onmouseleave: light(false), onfocus: light(true), onblur: light(false),
  }, h('span', { class: `dot colour-${share.colour}`, 'aria-hidden': 'true' }),
  h('span', { class: 'chip-name' }, h('span', { class: 'chip-namespace' }, `${share.namespace}/`), share.pod),
  h('span', { class: 'chip-what' }, what));
}

function drawHeat(node) {
  const square = (card) => {
    const wrong = states(card).map(([, text]) => text);
    const said = `Card ${card.index}, ${WORDS[level(card)]}: compute ${percent(usedCores(card), card.cores)} %, memory ${percent(usedMemory(card), card.memoryMiB)} %, ${count(card.shares.length, 'share')}${wrong.length ? `, ${wrong.join(', ')}` : ''}`;
    return h('li', { class: `square level-${level(card)} ${card.sells ? '' : 'closed'}`, title: said },
      h('span', { 'aria-hidden': 'true' }, String(card.index)), h('span', { class: 'out-of-sight' }, said));
  };
  return [head(node), h('ul', { class: 'squares' }, node.cards.map(square))];
}

/** What the colours mean. */
export function legend(place, heat) {
  renew(place, heat, () => (heat
    ? WORDS.map((word, step) => h('span', {}, h('span', { class: `level level-${step}`, 'aria-hidden': 'true' }), word))
    : [h('span', {}, 'Each colour is a pod; the square beside a card tells how full it is.'),
      h('span', {}, h('span', { class: 'dot strangers', 'aria-hidden': 'true' }), 'held by no pod of ours')]));
}

export function cardsTable(place, nodes) {
  const rows = nodes.flatMap((node) => node.cards.map((card) => [
    `${node.name} / ${card.index}`, card.model,
    `${percent(usedCores(card), card.cores)} %`, `${mebibytes(usedMemory(card))} of ${mebibytes(card.memoryMiB)}`,
    card.shares.map(nameOf).join(', ') || 'nobody',
    [...nodeStates(node), ...states(card)].map(([, text]) => text).join(', ') || 'in service',
  ]));
  const columns = [['Card'], ['Model'], ['Compute held', 'number'], ['Memory held', 'number'], ['Held by'], ['State']];
  renew(place, rows, () => table('All cards, with what is held of each', columns, rows));
}
