"use strict";
/* Reads the report's data files and makes elements. Model output is inserted only as textContent, and hidden characters are made visible. */

const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

const byId = (id) => document.getElementById(id);
const waiting = new Map();
const loaded = new Map();
let index = null;

/* Data files call this. */
function skillmix(kind, number, data) {
  const name = `${kind}-${number}`;
  loaded.set(name, data);
  if (waiting.has(name)) { waiting.get(name).resolve(data); waiting.delete(name); }
}
window.skillmix = skillmix;

function load(kind, number) {
  const name = `${kind}-${number}`;
  if (loaded.has(name)) return Promise.resolve(loaded.get(name));
  if (waiting.has(name)) return waiting.get(name).promise;
  const entry = {};
  entry.promise = new Promise((resolve, reject) => { entry.resolve = resolve; entry.reject = reject; });
  waiting.set(name, entry);
  const script = document.createElement("script");
  script.src = kind === "index" ? "data/index.js" : `data/${name}.js`;
  script.onload = () => script.remove();
  script.onerror = () => { waiting.delete(name); entry.reject(new Error(`data/${name}.js is missing`)); };
  document.head.append(script);
  return entry.promise;
}

function fileOf(kind, number) {
  const starts = index.starts[kind];
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= number) low = middle; else high = middle - 1;
  }
  return low;
}

async function item(kind, number) {
  const file = fileOf(kind, number);
  const data = await load(kind, file);
  return data[number - index.starts[kind][file]];
}

/* Building blocks. */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function words(text, needle) {
  const fragment = document.createDocumentFragment();
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    plain(fragment, text.slice(end, match.index), needle);
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    const mark = element("span", "hidden-sign");
    mark.textContent = `U+${code}`;
    mark.title = "a character that would not be seen";
    fragment.append(mark);
    end = match.index + match[0].length;
  }
  plain(fragment, text.slice(end), needle);
  return fragment;
}

function plain(fragment, text, needle) {
  if (!needle) { fragment.append(document.createTextNode(text)); return; }
  const low = text.toLowerCase();
  let from = 0;
  for (let at = low.length === text.length ? low.indexOf(needle) : -1; at >= 0; at = low.indexOf(needle, from)) {
    fragment.append(document.createTextNode(text.slice(from, at)));
    const mark = document.createElement("mark");
    mark.textContent = text.slice(at, at + needle.length);
    fragment.append(mark);
    from = at + needle.length;
  }
  fragment.append(document.createTextNode(text.slice(from)));
}

function labelled(tag, className, text, needle) {
  const made = element(tag, className);
  made.append(words(text, needle));
  return made;
}

/* Names. Links identify students and graders by run and name, because their numbers change if a report has more runs. */
const keyOf = ([run, name]) => `${run}/${name}`;
const nameOf = ([run, name]) => (index.runs.length > 1 ? `${run}: ${name}` : name);
const studentName = (number) => nameOf(index.students[number]);
const graderName = (number) => nameOf(index.graders[number]);
const numberOf = (list, key) => list.findIndex((entry) => keyOf(entry) === key);
/* Graders of some runs name an outcome of each text instead of giving points. */
const NAMED_OUTCOMES = ["complies", "refuses", "evades"];
const hasNamedOutcome = (text) => (index.outcome_runs ?? []).includes(index.students[text[0]][0]);
const criteria = (combination, text) => (hasNamedOutcome(text) ? NAMED_OUTCOMES : [...combination[1].map((skill) => index.skills[skill]), "topic", "sense", "length"]);
const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function option(value, text) {
  const made = labelled("option", "", String(text));
  made.value = value;
  return made;
}

function fillSelect(id, entries, any) {
  const first = any === null ? [] : [option("", any)];
  byId(id).replaceChildren(...first, ...entries.map(([value, text]) => option(String(value), text)));
}

const address = (fields) => `#${new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== "" && value !== null))}`;
