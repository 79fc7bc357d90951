// The page: asks, draws, listens, asks again.

import { Refused, get, listen, namespaceOfToken, token } from './api.js';
import { charts, pointsTable } from './charts.js';
import { byId, count, h, mebibytes, percent, renew, show, table } from './dom.js';
import { MANY, cardsTable, draw, join, legend, usedCores, usedMemory } from './map.js';
import * as story from './story.js';

const state = {
  nodes: [], shares: [], pods: [], quotas: [], history: { everySeconds: 10, points: [] },
  seesNodes: false, namespace: null, hidden: [], heat: null, known: null,
};
/** Names of pods beyond this are found by searching. */
const ROWS = 300;
const PAUSE = 10_000;

const given = new URL(location.href).searchParams.get('namespace');
const nothing = (value) => () => value;
let turn = 0;

/** What may be seen, or the sentence that says which right is missing. */
async function unlessForbidden(asked, otherwise) {
  try {
    return await asked;
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 403) throw error;
    return otherwise(error.message);
  }
}

async function load() {
  const missing = [];
  const note = (value) => (message) => {
    if (!missing.includes(message)) missing.push(message);
    return value;
  };
  const [nodes, devices, history] = await Promise.all([
    unlessForbidden(get('nodes'), note(null)), unlessForbidden(get('devices'), nothing([])),
    unlessForbidden(get('history'), nothing(state.history)),
  ]);
  // Whoever may not see all pods sees those of one namespace.
  let namespace = null;
  let pods = await unlessForbidden(get('pods'), note(null));
  if (pods === null) {
    namespace = state.namespace ?? given ?? namespaceOfToken();
    pods = namespace ? await unlessForbidden(get('pods', { namespace }), note(null)) : null;
  }
  const seen = pods !== null;
  const [shares, quotas] = seen
    ? await Promise.all([get('shares', { namespace }), get('quotas', { namespace })]) : [[], []];
  return {
    seesNodes: nodes !== null, namespace, hidden: missing, seesPods: seen, shares, quotas, history,
    pods: (pods ?? []).sort((a, b) => a.namespace.localeCompare(b.namespace) || a.name.localeCompare(b.name, 'en', { numeric: true })),
    nodes: join(nodes ?? [], devices, shares),
  };
}

function drawAll() {
  const cards = state.nodes.flatMap((node) => node.cards);
  const heat = state.heat ?? cards.length > MANY;
  drawLimits();
  drawTiles(cards);
  for (const id of ['cluster', 'use']) {
    show(byId(id), state.seesNodes);
    show(document.querySelector(`#parts a[href="#${id}"]`), state.seesNodes);
  }
  document.querySelector('.columns').classList.toggle('alone', !state.seesNodes);
  if (state.seesNodes) {
    byId('as-shares').setAttribute('aria-pressed', String(!heat));
    byId('as-heat').setAttribute('aria-pressed', String(heat));
    draw(byId('map'), state.nodes, heat, openPod);
    legend(byId('legend'), heat);
    if (byId('cards-as-table').open) cardsTable(byId('cards'), state.nodes);
    charts(byId('charts'), state.history);
    if (byId('use-as-table').open) pointsTable(byId('points'), state.history);
  }
  drawWaiting();
  drawPods();
  drawQuotas();
}

function drawLimits() {
  show(byId('limits'), state.hidden.length > 0);
  if (state.hidden.length === 0) return;
  const where = state.seesPods && state.namespace ? ` Shown are the pods of namespace ${state.namespace}.` : '';
  const rights = 'Ask an administrator for the right to list nodes, and pods in all namespaces, to see the whole cluster.';
  const text = `You do not see everything: ${state.hidden.join('; ')}.${where} ${state.seesPods && state.seesNodes ? '' : rights}`;
  renew(byId('limits-text'), text, () => text);
  show(byId('namespace-form'), !state.seesPods || Boolean(state.namespace));
}

function drawTiles(cards) {
  const sum = (list, value) => list.reduce((total, each) => total + value(each), 0);
  const waiting = state.pods.filter((pod) => pod.state === 'pending').length;
  const tiles = [];
  if (state.seesNodes) {
    const [cores, held] = [sum(cards, (card) => card.cores), sum(cards, usedCores)];
    const [memory, used] = [sum(cards, (card) => card.memoryMiB), sum(cards, usedMemory)];
    const out = cards.filter((card) => !card.sells).length;
    tiles.push(['Nodes', String(state.nodes.filter((node) => node.cards.length > 0).length), '']);
    tiles.push(['Cards', String(cards.length), out > 0 ? `${out} out of service` : '']);
    tiles.push(['Compute held', `${percent(held, cores)} %`, `${(held / 100).toLocaleString('en', { maximumFractionDigits: 1 })} of ${cores / 100} cards`]);
    tiles.push(['Memory held', `${percent(used, memory)} %`, `${mebibytes(used)} of ${mebibytes(memory)}`]);
  }
  tiles.push(['Pods with cards', String(state.pods.length - waiting), '']);
  tiles.push(['Waiting', String(waiting), '']);
  renew(byId('tiles'), tiles, () => tiles.map(([name, value, more]) => h('div', { class: name === 'Waiting' && waiting > 0 ? 'tile warm' : 'tile' },
    h('dt', {}, name), h('dd', {}, h('span', { class: 'tile-value' }, value), h('span', { class: 'tile-more' }, more)))));
}

function openPod(namespace, pod) {
  history.replaceState(null, '', story.address(namespace, pod));
  story.open({ namespace, pod }, state);
}

function podButton(pod, place) {
  return h('button', {
    type: 'button', class: 'as-link', 'data-key': `${place} ${pod.namespace}/${pod.name}`,
    onclick: () => openPod(pod.namespace, pod.name),
  }, h('span', { class: 'chip-namespace' }, `${pod.namespace}/`), pod.name);
}

function drawWaiting() {
  const waiting = state.pods.filter((pod) => pod.state === 'pending');
  const shown = waiting.slice(0, 20);
  renew(byId('waiting-list'), [shown, waiting.length], () => (waiting.length === 0
    ? h('p', { class: 'hint' }, 'No pod waits for a card.')
    : [h('ul', { class: 'waiting' }, shown.map((pod) => h('li', {}, podButton(pod, 'waiting'),
      h('span', { class: 'hint' }, pod.refused ? 'can never run as written' : pod.nominated ? `room is being made on ${pod.nominated}` : 'open it to see why')))),
    waiting.length > shown.length && h('p', { class: 'hint' }, `and ${waiting.length - shown.length} more, in the table of pods`)]));
}

const STATES = { bound: ['good', 'placed'], reserved: ['good', 'being placed'], pending: ['warm', 'waits'] };

function drawPods() {
  const wanted = byId('filter').value.trim().toLowerCase();
  const found = state.pods.filter((pod) => `${pod.namespace}/${pod.name} ${pod.node ?? ''} ${STATES[pod.state]?.[1] ?? ''}`.toLowerCase().includes(wanted));
  const shown = found.slice(0, ROWS);
  const held = new Map();
  for (const share of state.shares) {
    const name = `${share.namespace}/${share.pod}`;
    held.set(name, [...(held.get(name) ?? []), share]);
  }
  const what = (pod) => {
    const shares = held.get(`${pod.namespace}/${pod.name}`) ?? [];
    const whole = shares.filter((share) => share.whole).length;
    if (shares.length === 0) return '';
    if (whole === shares.length) return count(whole, 'whole card');
    const cores = shares.reduce((sum, share) => sum + share.cores, 0);
    const memory = shares.reduce((sum, share) => sum + share.memoryMiB, 0);
    return `${cores} %, ${mebibytes(memory)}${shares.length > 1 ? ` on ${shares.length} cards` : ''}`;
  };
  const data = shown.map((pod) => [pod, what(pod)]);
  renew(byId('pods-table'), data, () => table('Pods that hold or want cards', [['Pod'], ['State'], ['Node'], ['Holds', 'number'], ['Priority', 'number']],
    data.map(([pod, holds]) => {
      const [kind, word] = pod.refused ? ['bad', 'never runs'] : STATES[pod.state] ?? ['idle', pod.state];
      return [podButton(pod, 'pods'), h('span', { class: `badge ${kind}` }, pod.terminating ? 'leaving' : word), pod.node ?? '', holds, String(pod.priority)];
    })));
  const note = found.length > shown.length ? `${shown.length} of ${found.length} pods are shown; search for the others.`
    : wanted ? `${count(found.length, 'pod')} found.` : state.pods.length === 0 ? 'No pod holds or wants a card.' : '';
  renew(byId('pods-note'), note, () => note);
}

function drawQuotas() {
  renew(byId('quotas-body'), [state.quotas, state.seesPods], () => {
    const rules = state.quotas.flatMap((quota) => quota.rules.map((rule) => [quota, rule]));
    if (!state.seesPods) return h('p', { class: 'hint' }, 'Quotas are shown to those who may list pods.');
    if (rules.length === 0) return h('p', { class: 'hint' }, 'No namespace has a quota.');
    const of = (used, limit, form) => (limit === null || limit === undefined ? h('span', { class: 'hint' }, `${form(used)}, no limit`) : limited(used, limit, form));
    return h('div', { class: 'wide-table', tabindex: '0', role: 'region', 'aria-labelledby': 'quotas-title' }, h('table', {}, table('Quotas: held and allowed', [['Namespace'], ['Cards of'], ['Compute'], ['Memory'], ['Cards']],
      rules.map(([quota, rule]) => [quota.namespace, rule.model,
        of(rule.used.cores, rule.limit.cores, (amount) => `${amount} %`),
        of(rule.used.memoryMiB, rule.limit.memoryMiB, mebibytes),
        of(rule.used.cards, rule.limit.cards, String)]))));
  });
}

function limited(used, limit, form) {
  const full = limit > 0 ? Math.min(100, (100 * used) / limit) : 100;
  const part = h('span', { class: `part ${full >= 100 ? 'over' : 'quota'}` });
  part.style.width = `${full}%`;
  return h('div', { class: 'quota' }, h('div', { class: 'bar', 'aria-hidden': 'true' }, part), h('span', {}, `${form(used)} of ${form(limit)}`));
}

/** Says what became of pods since the last look, also to those who do not see the page. */
function tellChanges() {
  const now = new Map(state.pods.map((pod) => [pod.uid, pod]));
  const before = state.known;
  state.known = now;
  if (!before) return;
  const changes = [];
  for (const [uid, pod] of now) {
    const was = before.get(uid);
    const name = `${pod.namespace}/${pod.name}`;
    if (pod.node && !was?.node) changes.push(`${name} was placed on ${pod.node}`);
    else if (!was) changes.push(`${name} waits for a card`);
    else if (pod.terminating && !was.terminating) changes.push(`${name} is leaving`);
  }
  for (const [uid, pod] of before) if (!now.has(uid)) changes.push(`${pod.namespace}/${pod.name} is gone`);
  if (changes.length === 0) return;
  const at = new Date().toLocaleTimeString();
  const lines = changes.length > 4 ? [...changes.slice(0, 3), `and ${changes.length - 3} other changes`] : changes;
  const list = byId('changes');
  list.prepend(...lines.map((line) => h('li', {}, h('span', { class: 'when' }, at), ' ', line)));
  while (list.children.length > 8) list.lastElementChild.remove();
  show(byId('no-changes'), false);
}

function link(kind, text) {
  renew(byId('link'), [kind, text], () => [h('span', { class: `lamp ${kind}`, 'aria-hidden': 'true' }), text]);
}

let busy = 0;
let again = false;
let greeted = false;

/** Asks for everything and draws it. Whoever asks meanwhile is served by one more look. */
async function look() {
  if (busy === turn) {
    again = true;
    return;
  }
  busy = turn;
  const mine = turn;
  const started = performance.now();
  try {
    const loaded = await load();
    if (mine !== turn) return;
    Object.assign(state, loaded);
    show(byId('login'), false);
    show(byId('content'), true);
    show(byId('parts'), true);
    show(byId('sign-out'), Boolean(token.get()));
    drawAll();
    tellChanges();
    if (!greeted) openNamed();
    greeted = true;
    await story.refresh(state);
  } finally {
    if (busy === mine) busy = 0;
  }
  // A large cluster is not asked all the time.
  const rest = 5 * (performance.now() - started);
  if (again) {
    again = false;
    setTimeout(() => look().catch(trouble), rest);
  }
}

function trouble(error) {
  if (error instanceof Refused && error.status === 401) return signIn(token.get() ? 'This token is not known, or no longer.' : '');
  if (error.name === 'AbortError') return undefined;
  return link('bad', error instanceof Refused ? error.message : 'The scheduler is not reached. Trying again.');
}

function signIn(message) {
  turn += 1;
  listening?.abort();
  token.forget();
  state.known = null;
  for (const id of ['content', 'parts', 'sign-out']) show(byId(id), false);
  show(byId('login'), true);
  byId('login-error').textContent = message;
  link('idle', 'Not signed in');
  byId('token').focus();
}

let listening = null;

/** Follows the stream for as long as this visit lasts, and looks whenever it says so. */
async function follow() {
  const mine = turn;
  let wait = 1000;
  while (mine === turn) {
    listening = new AbortController();
    try {
      await look();
      if (mine !== turn) return;
      const namespace = state.namespace;
      if (!state.seesPods) throw new Refused(403, '');
      await listen({ namespace }, listening.signal, (event) => {
        wait = 1000;
        link('good', 'Live');
        if (event === 'changed') look().catch(trouble);
      });
      link('idle', 'Connecting again');
    } catch (error) {
      if (mine !== turn) return;
      if (error instanceof Refused && error.status !== 401 && error.status >= 400) {
        link('idle', `Looks again every ${PAUSE / 1000} seconds`);
        wait = PAUSE;
      } else {
        trouble(error);
      }
    }
    await new Promise((resolve) => { setTimeout(resolve, wait); });
    wait = Math.min(PAUSE, wait * 2);
  }
}

function visit() {
  turn += 1;
  listening?.abort();
  state.known = null;
  follow().catch(trouble);
}

function start() {
  story.start();
  byId('login-form').addEventListener('submit', (event) => {
    event.preventDefault();
    token.set(byId('token').value.trim());
    byId('token').value = '';
    // Whoever signs in next sees nothing of what was shown before.
    if (greeted) location.reload();
    else visit();
  });
  byId('namespace-form').addEventListener('submit', (event) => {
    event.preventDefault();
    state.namespace = byId('namespace').value.trim();
    visit();
  });
  byId('sign-out').addEventListener('click', () => {
    token.forget();
    location.replace(`${location.pathname}${location.search}`);
  });
  byId('filter').addEventListener('input', drawPods);
  for (const [id, heat] of [['as-shares', false], ['as-heat', true]]) {
    byId(id).addEventListener('click', () => {
      state.heat = heat;
      drawAll();
    });
  }
  for (const id of ['cards-as-table', 'use-as-table']) byId(id).addEventListener('toggle', drawAll);
  addEventListener('hashchange', openNamed);
  // Use over time, and reasons that change with other pods.
  setInterval(() => {
    if (!document.hidden && !byId('content').hidden) look().catch(trouble);
  }, PAUSE);
  link('idle', 'Connecting');
  visit();
}

function openNamed() {
  const pod = story.named(location.hash);
  if (pod) story.open(pod, state);
}

start();
