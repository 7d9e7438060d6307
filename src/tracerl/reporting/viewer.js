// Plays responses step by step. A step only touches the tokens that it commits, so thousands of tokens stay smooth.
"use strict";
const { texts, responses } = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { shown: [], at: 0, step: 0, last: 0, timer: 0, panels: [] };

function array(text, Type) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Type(bytes.buffer);
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// 0 to 100: orange to yellow up to 60, then teal to blue, as the key in the bar shows. Told apart with any colour vision.
function colour(probability) {
  const p = probability / 100;
  return p < 0.6 ? `hsl(${(28 + 33 * p).toFixed(0)} ${(90 - 40 * p).toFixed(0)}% var(--lum))`
    : `hsl(${(190 + 62 * (p - 0.6)).toFixed(0)} ${(45 + 75 * (p - 0.6)).toFixed(0)}% var(--lum))`;
}

class Panel {
  constructor(response, label) {
    this.steps = array(response.steps, Uint32Array);
    this.ids = array(response.ids, Uint32Array);
    this.confidence = array(response.confidence, Uint8Array);
    this.response = response;
    this.last = response.num_steps;
    this.root = element("article", "panel");
    this.root.tabIndex = 0;
    const head = element("h2");
    head.append(label ? label + ": " : "", element("span", "verdict " + response.verdict, response.verdict));
    head.append(` · reward ${response.reward}`);
    this.root.append(head, element("p", "meta", response.meta), element("div", "task", response.prompt));
    if (response.answer) this.root.append(element("p", "meta", "expected answer: " + response.answer));
    this.canvas = element("div", "canvas");
    this.root.append(this.canvas);
    this.build();
    this.step = -1;
    this.show(0);
  }

  build() {
    const { block_size: size, tail } = this.response;
    this.cells = [];
    this.blocks = [];
    this.byStep = Array.from({ length: this.last + 1 }, () => []);
    for (let place = -tail.length; place < this.ids.length; place++) {
      if ((place + tail.length) % size === 0) {
        this.blocks.push(element("span", "block"));
        this.canvas.append(this.blocks.at(-1), " ");
      }
      const cell = element("i");
      this.blocks.at(-1).append(cell);
      if (place < 0) {
        cell.className = "prompt";
        cell.textContent = texts[tail[place + tail.length]];
        continue;
      }
      cell.className = "masked" + (place >= this.response.num_tokens ? " after" : "");
      cell.textContent = "·";
      this.cells.push(cell);
      if (this.steps[place]) this.byStep[this.steps[place]].push(place);
    }
  }

  put(place, committed) {
    const cell = this.cells[place];
    cell.textContent = committed ? texts[this.ids[place]] : "·";
    cell.classList.toggle("masked", !committed);
    const known = this.confidence[place] <= 100;
    cell.style.background = committed && known ? colour(this.confidence[place]) : "";
    cell.title = committed ? `step ${this.steps[place]}` + (known ? `, probability ${this.confidence[place]}%` : "") : "";
  }

  mark(step, on) {
    for (const place of this.byStep[step] || []) {
      this.cells[place].classList.toggle("new", on);
      this.cells[place].parentNode.classList.toggle("live", on);
    }
  }

  show(step) {
    step = Math.min(step, this.last);
    if (step === this.step) return;
    this.mark(this.step, false);
    for (let s = this.step + 1; s <= step; s++) for (const place of this.byStep[s]) this.put(place, true);
    for (let s = this.step; s > step; s--) for (const place of this.byStep[s]) this.put(place, false);
    this.mark(step, true);
    this.step = step;
  }
}

function go(step) {
  state.step = Math.max(0, Math.min(step, state.last));
  for (const panel of state.panels) panel.show(state.step);
  $("step").value = state.step;
  $("now").textContent = `step ${state.step} of ${state.last}`;
  if (state.step === state.last) pause();
}

function pause() {
  clearInterval(state.timer);
  state.timer = 0;
  $("play").textContent = "▶";
  $("play").setAttribute("aria-label", "Play");
}

function play() {
  if (state.timer) return pause();
  if (state.step === state.last) go(0);
  $("play").textContent = "❚❚";
  $("play").setAttribute("aria-label", "Pause");
  state.timer = setInterval(() => go(state.step + 1), 1000 / Number($("speed").value));
}

function select(at) {
  if (!state.shown.length) return $("panels").replaceChildren(element("p", "panel note", "No response matches."));
  pause();
  state.at = Math.max(0, Math.min(at, state.shown.length - 1));
  const response = state.shown[state.at];
  state.panels = response.before ? [new Panel(response.before, "before"), new Panel(response, "after")] : [new Panel(response, "")];
  state.last = Math.max(...state.panels.map((panel) => panel.last));
  $("panels").replaceChildren(...state.panels.map((panel) => panel.root));
  $("step").max = state.last;
  for (const [i, item] of [...$("list").children].entries()) item.setAttribute("aria-selected", i === state.at);
  go(state.last);
  $("list").children[state.at].scrollIntoView({ block: "nearest" });
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const verdict = $("verdict").value, stage = $("stage").value;
  state.shown = responses.filter((one) => (!verdict || verdictOf(one) === verdict) && (!stage || one.stage === stage)
    && words.every((word) => one.words.includes(word)));
  $("list").replaceChildren(...state.shown.map((one, i) => {
    const item = element("li");
    item.setAttribute("role", "option");
    const what = element("div", "what");
    what.append(element("span", "", one.stage + " " + one.iteration), element("span", "verdict " + one.verdict, verdictOf(one)));
    item.append(element("div", "problem", one.prompt), what);
    item.addEventListener("click", () => select(i));
    return item;
  }));
  $("count").textContent = `${state.shown.length} of ${responses.length}`;
  select(0);
}

// Of a pair, what changed.
function verdictOf(one) {
  return one.before && one.before.verdict !== one.verdict ? `${one.before.verdict} → ${one.verdict}` : one.verdict;
}

function fill(id, values) {
  for (const value of [...new Set(values)].sort()) {
    const option = element("option", "", value);
    option.value = value;
    $(id).append(option);
  }
}

for (const one of responses) one.words = [one.prompt, one.text, one.rollout_id, one.answer].join(" ").toLowerCase();
fill("verdict", responses.map(verdictOf));
fill("stage", responses.map((one) => one.stage));
for (const id of ["verdict", "stage"]) $(id).addEventListener("change", filter);
$("search").addEventListener("input", filter);
$("step").addEventListener("input", () => { pause(); go(Number($("step").value)); });
$("play").addEventListener("click", play);
$("speed").addEventListener("change", () => { if (state.timer) { pause(); play(); } });
document.addEventListener("keydown", (event) => {
  const typing = event.target.id === "search" || event.target.tagName === "SELECT";
  if (event.key === "Escape") return document.activeElement.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = {
    " ": () => { if (event.target.tagName !== "BUTTON") play(); else return false; },
    ArrowRight: () => { pause(); go(state.step + 1); }, ArrowLeft: () => { pause(); go(state.step - 1); },
    Home: () => { pause(); go(0); }, End: () => { pause(); go(state.last); },
    ArrowDown: () => select(state.at + 1), ArrowUp: () => select(state.at - 1), j: () => select(state.at + 1), k: () => select(state.at - 1),
    "/": () => $("search").focus(),
  };
  if (keys[event.key] && keys[event.key]() !== false) event.preventDefault();
});
filter();
