"use strict";
/* One card for each combination: its texts with points, remarks, votes and conversations. */

function card(hit, combination, wanted) {
  const [id, skills, topic, texts] = combination;
  const chips = skills.map((skill) => skillChip(skill, wanted.needle));
  const facts = element("p", "facts", `k = ${skills.length}`, ...settingsOf(hit, texts).map((setting) => labelled("span", "setting", setting)));
  const link = element("a", "permanent", "link");
  link.href = address({ combination: id });
  link.title = "A link to every text of this combination";
  facts.append(link);
  const head = element("header", "", labelled("h2", "", index.topics[topic], wanted.needle), element("p", "chips", ...chips), facts);
  const made = element("article", "card", head);
  made.dataset.combination = id;
  made.tabIndex = -1;
  const [left, right] = [hit.left, hit.right].map((places) => places && places.map((place) => texts[place]));
  if (!right) {
    made.append(...left.map((text) => textBlock(combination, text, wanted, { isNamed: true })));
    return made;
  }
  const other = (text, others) => (others.length === 1 ? others[0] : others.find((one) => one[GENERATION] === text[GENERATION]) ?? null);
  const column = (own, others) => element("div", "column", labelled("h3", "", studentName(own[0][STUDENT])), ...own.map((text) => textBlock(combination, text, wanted, { other: other(text, others) })));
  made.append(element("div", "beside", column(left, right), column(right, left)));
  return made;
}

/* A skill, with a link to its definition if that is known. */
function skillChip(skill, needle) {
  const name = index.skills[skill];
  const chip = element("span", "chip");
  if (!Object.hasOwn(index.definitions, name)) { chip.append(words(name, needle)); return chip; }
  const link = labelled("a", "defined", name, needle);
  link.href = `#skill-${skill}`;
  link.setAttribute("aria-describedby", `skill-${skill}-text`);
  chip.append(link);
  return chip;
}

function fillDefinitions() {
  byId("definitions").replaceChildren(...index.skills.flatMap((name, skill) => {
    if (!Object.hasOwn(index.definitions, name)) return [];
    const [definition, example, category, side] = index.definitions[name];
    const text = element("dd", "", labelled("span", "", definition), " ", labelled("q", "", example), " ", labelled("small", "", `${category}; ${side}`));
    text.id = `skill-${skill}-text`;
    const entry = element("div", "", labelled("dt", "", name), text);
    entry.id = `skill-${skill}`;
    return [entry];
  }));
}

/* The settings whose scores count the displayed texts. */
function settingsOf(hit, texts) {
  const students = new Set([...hit.left, ...(hit.right || [])].map((place) => texts[place][STUDENT]));
  const cells = index.cells.filter(([student, , , , ranges]) => students.has(student) && ranges.some(([first, last]) => first <= hit.number && hit.number <= last));
  return [...new Set(cells.map((cell) => cell[2]))];
}

function textBlock(combination, text, wanted, { isNamed = false, other = null }) {
  const [student, generation, status, flags] = text;
  const made = element("section", "text");
  const title = element("p", "who");
  if (isNamed) title.append(labelled("b", "", studentName(student)), " ");
  title.append(`text ${generation + 1}`);
  if (status !== "fine") title.append(" ", labelled("span", "badge bad", status));
  for (const [name, flag] of Object.entries(FLAGS)) if (flags & flag) title.append(" ", element("span", "badge bad", name));
  const link = element("a", "permanent", "link");
  link.href = address({ text: `${keyOf(index.students[student])}/${combination[0]}/${generation}` });
  link.title = "A link to this text";
  title.append(" ", link);
  const quote = text[CONTENT] ? labelled("blockquote", "", text[CONTENT], wanted.needle) : element("blockquote", "empty", "(nothing to grade)");
  quote.dir = "auto";
  made.append(title, quote);
  const shown = gradedBy(text, wanted.grader);
  for (const entry of shown) made.append(pointsLine(combination, text, entry, { isNamed: shown.length > 1, marked: markedPoints(text, entry, other, wanted.sort === "disagreement" ? text[GRADED] : []) }));
  if (!shown.length) made.append(element("p", "points", element("span", "badge", "not graded")));
  const unrequested = text[UNREQUESTED] || [];
  if (unrequested.length) made.append(element("p", "more-skills", "Also shows, unrequested: ", ...unrequested.map((skill) => labelled("span", "chip faint", index.skills[skill]))));
  const actions = element("p", "actions");
  const room = element("div", "room");
  if (text[VOTES] >= 0) actions.append(opener("Votes and raw replies", room, () => votesView(combination, text)));
  if (text[TALK] >= 0) actions.append(opener("Conversation", room, () => talkView(text)));
  made.append(actions, room);
  return made;
}

/* Points that differ from those of the adjacent text, or from another grader's points for the same text. */
function markedPoints(text, [grader, points], other, gradings) {
  if (other) return new Set(differing(points, pointsOf(other, grader)));
  return new Set(gradings.flatMap(([, others]) => differing(points, others)));
}

function pointsLine(combination, text, [grader, points, remarks], { isNamed, marked }) {
  const outcome = outcomeOf(text, points);
  const line = element("p", "points", labelled("span", outcome === "full marks" ? "badge good" : "badge", outcome));
  if (isNamed) line.append(labelled("span", "grader", graderName(grader)));
  const isByCode = index.graders_with_code.includes(grader);
  criteria(combination, text).forEach((name, at) => {
    if (hasNamedOutcome(text) && points[at] === "0") return;
    const sign = { 1: "✓", 0: "✗", "?": "?" }[points[at]];
    const point = labelled("span", `point p${points[at] === "?" ? "u" : points[at]}`, `${sign} ${name}`);
    if (marked.has(at)) { point.classList.add("differs"); point.title = "The points differ here"; }
    const evidence = isByCode && Array.isArray(text[WORDS]) ? text[WORDS][at] : null;
    if (evidence) point.append(labelled("q", "", evidence));
    const remark = remarks ? remarks[at] : null;
    if (remark !== null) point.append(labelled("span", "reason", typeof remark === "number" ? index.reasons[remark] : remark));
    line.append(point);
  });
  return line;
}

function opener(label, room, make) {
  const control = element("button", "link", label);
  control.type = "button";
  control.setAttribute("aria-expanded", "false");
  control.addEventListener("click", async () => {
    const isOpen = control.getAttribute("aria-expanded") === "true";
    for (const other of control.parentElement.children) other.setAttribute("aria-expanded", "false");
    room.replaceChildren();
    if (isOpen) return;
    control.setAttribute("aria-expanded", "true");
    try { room.replaceChildren(await make()); } catch (problem) { room.textContent = `The data cannot be read: ${problem.message}.`; }
  });
  return control;
}

async function prompt(parts, answer) {
  let made = "";
  let isFresh = true;
  for (const number of parts) {
    if (number === -1) { made += answer; isFresh = true; continue; }
    made += (isFresh ? "" : "\n") + await item("lines", number);
    isFresh = false;
  }
  return made;
}

function rawText(title, text, isOpen) {
  const pre = element("pre", "");
  pre.dir = "auto";
  pre.append(words(text));
  const made = element("details", "raw", labelled("summary", "", title), pre);
  made.open = Boolean(isOpen);
  return made;
}

function heading(scope, text) {
  const made = labelled("th", "", text);
  made.scope = scope;
  return made;
}

async function votesView(combination, text) {
  const [prompts, votes] = await item("votes", text[VOTES]);
  const names = criteria(combination, text);
  const title = ([grader, round, attempt]) => `${graderName(grader)}, round ${round + 1}${attempt ? `, attempt ${attempt + 1}` : ""}`;
  const head = element("tr", "", heading("col", "criterion"), ...votes.map((vote) => heading("col", title(vote))));
  const rows = names.map((name, place) => element("tr", "", heading("row", name), ...votes.map((vote) => {
    const point = vote[5] ? vote[5][place] : null;
    return element("td", point === null ? "none" : point > 0.5 ? "p1" : "p0", point === null ? "–" : String(point));
  })));
  const made = element("div", "votes", element("div", "scroll", element("table", "", element("thead", "", head), element("tbody", "", ...rows))));
  const note = hasNamedOutcome(text) ? "1 is the outcome that a vote names. A majority of the rounds decides." : "What each vote says. The length is counted by code whatever a grader says, and so is a skill that is named instead of shown.";
  made.append(element("p", "note", note));
  for (const vote of votes) {
    const [, , , , reply, , problem, notes] = vote;
    const about = problem ? ` – not counted: ${problem}` : notes.length ? ` – ${notes.join("; ")}` : "";
    made.append(rawText(`Reply: ${title(vote)}${about}`, reply ?? `(no reply: ${problem})`, votes.length <= 3));
  }
  for (const [number, messages] of prompts.entries()) {
    const parts = [];
    for (const [role, lines] of messages) parts.push(`[${role}]\n${await prompt(lines, text[CONTENT])}`);
    const users = [...new Set(votes.filter((vote) => vote[3] === number).map((vote) => graderName(vote[0])))];
    if (parts.length) made.append(rawText(`Prompt of ${users.join(", ")}`, parts.join("\n\n")));
  }
  return made;
}

async function talkView(text) {
  const [model, messages, reply, problem] = await item("talks", text[TALK]);
  const made = element("div", "talk", labelled("p", "note", `Model: ${model}.`));
  const isWorked = (place) => messages.slice(place).some(([role, content]) => role === "assistant" && typeof content !== "string");
  let turnNumber = 1;
  for (const [place, [role, content]] of messages.entries()) {
    const isOwn = typeof content === "string";
    const said = isOwn ? content : await prompt(content, "");
    const title = isOwn ? `Reply ${turnNumber}` : role === "system" ? "System text" : isWorked(place) ? `Worked example, ${role}` : role === "user" ? `Prompt ${turnNumber}` : role;
    made.append(rawText(title, said, isOwn));
    if (isOwn) turnNumber += 1;
  }
  if (reply !== null) made.append(rawText(`Reply ${turnNumber}, the last`, reply, true));
  else made.append(labelled("p", "note", `No reply: ${problem}`));
  return made;
}
