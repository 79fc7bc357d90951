// A pod's story: where it sits and why there, or why it waits and what would help.

import { Refused, why } from './api.js';
import { byId, count, h, mebibytes, renew, table } from './dom.js';

let shown = null;
let opener = null;

const dialog = () => byId('story');

export const address = (namespace, pod) => `#pod/${encodeURIComponent(namespace)}/${encodeURIComponent(pod)}`;

/** The pod that an address names, if it names one. */
export function named(hash) {
  const parts = /^#pod\/([^/]+)\/([^/]+)$/.exec(hash);
  try {
    return parts && { namespace: decodeURIComponent(parts[1]), pod: decodeURIComponent(parts[2]) };
  } catch {
    return null;
  }
}

export function start() {
  byId('story-close').addEventListener('click', () => dialog().close());
  // A click beside it closes it, as people expect.
  dialog().addEventListener('click', (event) => event.target === dialog() && dialog().close());
  dialog().addEventListener('close', () => {
    shown = null;
    if (named(location.hash)) history.replaceState(null, '', `${location.pathname}${location.search}`);
    const again = opener && [...document.querySelectorAll('[data-key]')].find((element) => element.dataset.key === opener);
    again?.focus({ preventScroll: true });
  });
}

export async function open(pod, state) {
  opener = document.activeElement?.dataset?.key ?? null;
  shown = pod;
  byId('story-title').replaceChildren(h('span', { class: 'chip-namespace' }, `${pod.namespace}/`), pod.pod);
  byId('story-body').mark = null;
  byId('story-body').replaceChildren(h('p', { class: 'hint' }, 'Asking the scheduler…'));
  if (!dialog().open) dialog().showModal();
  byId('story-title').focus();
  await refresh(state);
}

/** Asks again for the pod that is shown. */
export async function refresh(state) {
  const pod = shown;
  if (!pod) return;
  let answer;
  try {
    answer = await why(pod.namespace, pod.pod);
  } catch (error) {
    if (!(error instanceof Refused)) return;
    answer = { state: error.status === 404 ? 'unknown' : 'hidden', reason: error.message };
  }
  if (shown !== pod) return;
  const shares = state.shares.filter((share) => share.namespace === pod.namespace && share.pod === pod.pod);
  renew(byId('story-body'), [answer, shares], () => tell(answer, shares));
}

function tell(answer, shares) {
  switch (answer.state) {
    case 'bound': return bound(answer, shares);
    case 'pending': return pending(answer);
    case 'refused': return [
      badge('bad', 'never runs as written'), sentence(answer.reason), helps(answer.whatWouldHelp)];
    case 'unknown': return [badge('idle', 'not known'), sentence(answer.reason)];
    default: return [badge('bad', 'not shown'), sentence(answer.reason)];
  }
}

const badge = (kind, text) => h('p', {}, h('span', { class: `badge large ${kind}` }, text));
const sentence = (text) => h('p', { class: 'sentence' }, text);
const part = (title, ...children) => h('section', {}, h('h3', {}, title), ...children);

function helps(list) {
  return list?.length > 0 && part('What would help', h('ul', {}, list.map((text) => h('li', {}, text))));
}

function bound(answer, shares) {
  const rows = shares.map((share) => [share.uuid, share.whole ? 'whole card' : `${share.cores} %`, mebibytes(share.memoryMiB)]);
  return [
    badge('good', answer.node ? `runs on ${answer.node}` : 'has a node'),
    rows.length > 0 && part('What it holds', h('div', { class: 'wide-table' }, h('table', {},
      table('What the pod holds', [['Card'], ['Compute', 'number'], ['Memory', 'number']], rows)))),
    decision(answer.lastDecision, 'Why there'),
  ];
}

function pending(answer) {
  const fits = answer.fits.length > 0;
  return [
    badge(fits ? 'good' : 'warm', answer.reservedOn ? `a place on ${answer.reservedOn} is reserved` : fits ? 'is about to be placed' : 'waits'),
    sentence(answer.summary),
    helps(answer.whatWouldHelp),
    answer.nominated && part('Room is being made', h('p', {}, `Other pods leave ${answer.nominated} for it.`)),
    answer.refused.length > 0 && part('Node by node', h('div', { class: 'wide-table' }, h('table', {}, reasons(answer.refused)))),
    answer.preemption && part('Would others leave for it?', h('p', {}, answer.preemption.now),
      answer.preemption.last && h('p', { class: 'hint' }, `At the last try: ${answer.preemption.last}`)),
    answer.notes?.length > 0 && part('Read differently from what is written', h('ul', {}, answer.notes.map((note) => h('li', {}, note)))),
    decision(answer.lastDecision, 'The last try'),
  ];
}

/** Nodes that say the same are one row. */
function reasons(refused) {
  const groups = new Map();
  for (const each of refused) {
    const group = groups.get(each.reason) ?? { ...each, nodes: [], best: { memoryMiB: 0, cores: 0 } };
    group.nodes.push(each.node);
    group.best.memoryMiB = Math.max(group.best.memoryMiB, each.best.memoryMiB);
    group.best.cores = Math.max(group.best.cores, each.best.cores);
    groups.set(each.reason, group);
  }
  const few = (names) => (names.length > 4 ? `${names.slice(0, 3).join(', ')} and ${count(names.length - 3, 'more', 'more')}` : names.join(', '));
  const rows = [...groups.values()].map((group) => [
    few(group.nodes), group.reason,
    group.best.cores > 0 || group.best.memoryMiB > 0 ? `${group.best.cores} %, ${mebibytes(group.best.memoryMiB)}` : 'nothing',
    group.forGood ? 'no' : 'yes',
  ]);
  return table('Why each node refuses the pod', [['Nodes'], ['Reason'], ['Most free on a card', 'number'], ['Can waiting help?']], rows);
}

function decision(last, title) {
  if (!last) return null;
  const when = new Date(last.at * 1000).toLocaleString();
  const asked = last.nodes > 0 ? `kube-scheduler asked about ${count(last.nodes, 'node')}; ${last.fits} fit.` : '';
  return part(title, h('p', {}, last.summary), h('p', { class: 'hint' }, `${asked} Decided in ${last.verb}, ${when}.`));
}
