"use strict";
/* Finds texts: filters, the two students of a comparison, sorting. It reads the marks of all texts, which are small, and the texts themselves only for words. */

const AHEAD = 4;
const OUTCOMES = ["full marks", "all skills, not all else", "skills missing", "format failure", "refused", "ungraded"];
const FLAGS = { "cut off": 1, "follows an example": 2 };
const [STUDENT, GENERATION, STATUS, FLAG, GRADED, CONTENT, TALK, VOTES, WORDS, UNREQUESTED] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

function outcomeOf(text, points) {
  if (hasNamedOutcome(text)) return points === null ? "ungraded" : NAMED_OUTCOMES[points.indexOf("1")] ?? "undecided";
  if (text[STATUS] === "refused") return "refused";
  if (points === null || points.includes("?") && !points.includes("0")) return "ungraded";
  if (!points.includes("0")) return "full marks";
  if (text[STATUS] === "no marker" || text[STATUS] === "empty") return "format failure";
  return points.slice(0, -3).includes("0") ? "skills missing" : "all skills, not all else";
}

const gradedBy = (text, grader) => text[GRADED].filter((entry) => grader === null || entry[0] === grader);

function pointsOf(text, grader) {
  const [entry] = gradedBy(text, grader);
  return entry ? entry[1] : null;
}

/* The criteria on which two gradings differ, by index. */
function differing(points, others) {
  if (points === null || others === null) return [];
  return [...points].map((point, at) => [point, others[at], at]).filter(([x, y]) => x !== y && x !== "?" && y !== "?").map(([, , at]) => at);
}

function numbersLike(names, text) {
  if (!text) return null;
  const low = text.toLowerCase();
  const exact = names.findIndex((name) => name.toLowerCase() === low);
  if (exact >= 0) return new Set([exact]);
  return new Set(names.map((name, number) => [name, number]).filter(([name]) => name.toLowerCase().includes(low)).map(([, number]) => number));
}

function merged(ranges) {
  const joined = [];
  for (const [first, last] of [...ranges].sort((x, y) => x[0] - y[0])) {
    const end = joined[joined.length - 1];
    if (end && first <= end[1] + 1) end[1] = Math.max(end[1], last); else joined.push([first, last]);
  }
  return joined;
}

/* Ranges of combination numbers that match the setting and k; all combinations if neither is chosen. */
function rangesOf(wanted) {
  if (wanted.pairs) return merged([...wanted.pairs.keys()].map((number) => [number, number]));
  if (!wanted.setting && wanted.k === null) return index.combinations ? [[0, index.combinations - 1]] : [];
  const chosen = index.cells.filter(([student, grader, setting, k]) =>
    (!wanted.setting || setting === wanted.setting) && (wanted.k === null || k === wanted.k) &&
    (wanted.a === null || student === wanted.a) && (wanted.grader === null || grader === wanted.grader));
  return merged(chosen.flatMap((cell) => cell[4]));
}

/* The report's comparison of two students; isSwapped means that it lists them in the opposite order. */
function pairOf(a, b) {
  const [[run, first], [other, second]] = [index.students[a], index.students[b]];
  if (run !== other) return null;
  const found = index.pairs.find(([of, x, y]) => of === run && (x === first && y === second || x === second && y === first));
  return found ? { sentences: found[3], rows: found[4], isSwapped: found[1] !== first } : null;
}

/* The combinations on which two students differ, each with the generations of their best texts. */
async function differingPairs(wanted) {
  const pair = pairOf(wanted.a, wanted.b);
  const pairs = new Map();
  for (const number of pair ? pair.rows : []) {
    const row = await item("pairs", number);
    const isWanted = (!wanted.setting || row.setting === wanted.setting) && (wanted.k === null || row.k === wanted.k) &&
      (wanted.grader === null || row.grader === index.graders[wanted.grader][1]);
    if (!isWanted) continue;
    const ahead = pair.isSwapped ? row.lost : row.won;
    const behind = pair.isSwapped ? row.won : row.lost;
    const listed = wanted.differ === "won" ? ahead : wanted.differ === "lost" ? behind : [...ahead, ...behind];
    for (const [combination, first, second] of listed) {
      if (!pairs.has(combination)) pairs.set(combination, pair.isSwapped ? [second, first] : [first, second]);
    }
  }
  return pairs;
}

/* Indices of a combination's matching texts from A and from B; null if nothing matches. */
function chosenTexts(combination, number, wanted) {
  const [id, skills, topic, texts] = combination;
  if (wanted.combination && id !== wanted.combination) return null;
  if (wanted.k !== null && skills.length !== wanted.k) return null;
  if (wanted.skillNumbers && !skills.some((skill) => wanted.skillNumbers.has(skill))) return null;
  if (wanted.request && index.controls.includes(index.topics[topic]) !== (wanted.request === "controls")) return null;
  if (wanted.topicNumbers && !wanted.topicNumbers.has(topic)) return null;
  const named = wanted.needle && (index.topics[topic].toLowerCase().includes(wanted.needle) || skills.some((s) => index.skills[s].toLowerCase().includes(wanted.needle)));
  const generations = wanted.pairs ? wanted.pairs.get(number) : [wanted.generation, null];
  const fits = (text) =>
    (wanted.a === null || text[STUDENT] === wanted.a) &&
    (generations[0] === null || text[GENERATION] === generations[0]) &&
    (wanted.grader === null || !text[GRADED].length || gradedBy(text, wanted.grader).length) &&
    (!wanted.outcome || hasOutcome(text, wanted)) &&
    (!wanted.needle || named || text[CONTENT].toLowerCase().includes(wanted.needle));
  const indices = (isWanted) => texts.flatMap((text, at) => (isWanted(text) ? [at] : []));
  const left = indices(fits);
  if (!left.length) return null;
  if (wanted.b === null) return { left, right: null };
  const right = indices((text) => text[STUDENT] === wanted.b && (generations[1] === null || text[GENERATION] === generations[1]));
  return right.length ? { left, right } : null;
}

function hasOutcome(text, wanted) {
  if (wanted.outcome in FLAGS) return (text[FLAG] & FLAGS[wanted.outcome]) !== 0;
  return outcomeOf(text, pointsOf(text, wanted.grader)) === wanted.outcome;
}

/* Sorting. Sort keys are computed from the marks of the displayed texts. */
/* The share of points that a text earns, according to the strictest grader; 2 if the text is not graded. */
function earned(text, grader) {
  const share = ([, points]) => [...points].filter((point) => point === "1").length / points.length;
  return Math.min(2, ...gradedBy(text, grader).map(share));
}

function disagreement(text) {
  const given = text[GRADED].map(([, points]) => points);
  return Math.max(0, ...given.flatMap((points, at) => given.slice(at + 1).map((other) => differing(points, other).length)));
}

/* FNV-1a with a final mixing step, so that a seed gives the same order in every browser. */
function shuffled(seed, id) {
  let hash = 2166136261;
  for (const letter of `${seed}:${id}`) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  hash = Math.imul(hash ^ (hash >>> 16), 2246822507);
  return (hash ^ (hash >>> 13)) >>> 0;
}

const SORTS = {
  worst: (texts, wanted) => Math.min(...texts.map((text) => earned(text, wanted.grader))),
  disagreement: (texts) => -Math.max(...texts.map(disagreement)),
  random: (texts, wanted, id) => shuffled(wanted.seed, id),
};

function* filesOf(kind, ranges) {
  let done = -1;
  for (const [first, last] of ranges) {
    for (let file = Math.max(fileOf(kind, first), done + 1); file <= fileOf(kind, last); file += 1) { done = file; yield file; }
  }
}

/* Whether a text counts in a score; most others were written for data sets. If a run has no scores, return true. */
function isScored(student, number) {
  const run = index.students[student][0];
  const own = index.cells.filter(([other]) => index.students[other][0] === run);
  return !own.length || own.some(([other, , , , ranges]) => other === student && ranges.some(([first, last]) => first <= number && number <= last));
}

/* Scans the data files one by one; yields each file's hits and the number of combinations searched. */
async function* scan(wanted) {
  const kind = wanted.needle ? "texts" : "marks";
  const files = [...filesOf(kind, wanted.ranges)];
  let range = 0;
  for (let at = 0; at < files.length; at += 1) {
    for (const next of files.slice(at + 1, at + 1 + AHEAD)) load(kind, next).catch(() => {});
    const start = index.starts[kind][files[at]];
    const data = await load(kind, files[at]);
    const hits = [];
    let seen = 0;
    for (let offset = 0; offset < data.length; offset += 1) {
      const number = start + offset;
      while (range < wanted.ranges.length && wanted.ranges[range][1] < number) range += 1;
      if (range >= wanted.ranges.length) break;
      if (number < wanted.ranges[range][0]) continue;
      seen += 1;
      const texts = data[offset] && chosenTexts(data[offset], number, wanted);
      if (!texts) continue;
      const key = wanted.sort ? SORTS[wanted.sort](texts.left.map((place) => data[offset][3][place]), wanted, data[offset][0]) : 0;
      const unscored = texts.left.filter((place) => !isScored(data[offset][3][place][STUDENT], number)).length;
      hits.push({ number, key, unscored, ...texts });
      if (wanted.combination) { yield { hits, seen }; return; }
    }
    yield { hits, seen };
  }
}
