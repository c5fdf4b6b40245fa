// What the pages do by themselves: follow Airflow's colours, draw figures, stay up to date, show a segment, send a form.
"use strict";

const AIRFLOW = document.documentElement.dataset.airflow; // where Airflow is, without a slash at the end
const ROOT = document.documentElement.dataset.root; // where these pages are
const REFRESH_MILLISECONDS = 5000; // from one answer to the next question, so that a slow database is not asked twice at once
const PATIENCE_MILLISECONDS = 30000;
const [AXES, LABELS] = [["xaxis", "yaxis"], 8]; // of a figure, and of a hexadecimal axis
const [FIRST_LOOK_MILLISECONDS, LATER_LOOKS_MILLISECONDS] = [1000, 30000]; // at a run that was asked for

// Colours: Airflow's, if the page is in its frame; else what the system says.
function outer() {
  try { return window.parent !== window ? window.parent.document.documentElement : null; } catch { return null; }
}
function isDark() {
  const above = outer();
  if (above && /\b(dark|light)\b/.test(above.className)) return above.classList.contains("dark");
  return matchMedia("(prefers-color-scheme: dark)").matches;
}
function colour() {
  const theme = isDark() ? "dark" : "light";
  if (document.documentElement.dataset.theme === theme) return;
  document.documentElement.dataset.theme = theme;
  if (window.Plotly) drawAll(document);
}
colour();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
if (outer()) new MutationObserver(colour).observe(outer(), { attributeFilter: ["class"] });

// Where Airflow's own address leads. Before 3.3 it opens the frame at the first page all the same, and before 3.2 an address of a plugin
// has no path of its own, so there it is in the query. Whoever goes on from page to page stays where he is.
function wanted() {
  if (!outer() || (document.referrer && new URL(document.referrer).pathname.startsWith(`${ROOT}/`))) return null;
  const [at, plugin] = [window.parent.location, `${AIRFLOW}/plugin/cleave`];
  const query = new URLSearchParams(at.search).get("at");
  if (at.pathname === plugin) return query?.startsWith("/") ? ROOT + query : null;
  const page = at.pathname.startsWith(`${plugin}/`) ? AIRFLOW + at.pathname.slice(plugin.length) : "";
  return page.startsWith(`${ROOT}/`) ? page + at.search : null;
}
const place = wanted();
if (place && place !== location.pathname + location.search) location.replace(place);

// Figures: a <div data-figure> holds its document in a script; the colours are the page's.
function styled(figure, plot) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, linecolor: line, zerolinecolor: line };
  const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, size: 12 } };
  for (const name of AXES) {
    layout[name] = { ...axis, automargin: true, ...figure.layout[name] };
    if (isHexadecimal(layout[name])) Object.assign(layout[name], { tick0: 0, dtick: step(plot.layout?.[name]?.range ?? layout[name].range) });
  }
  return { data: figure.data, layout: { ...layout, uirevision: "kept" } }; // what was zoomed stays zoomed
}
function draw(div) {
  const plot = div.querySelector(".plot");
  const { data, layout } = styled(JSON.parse(div.querySelector("script").textContent), plot);
  if (div.dataset.topic) link(div, data);
  Plotly.react(plot, data, layout, { responsive: true, displaylogo: false }).then(() => {
    if (plot.dataset.listens) return;
    plot.dataset.listens = "yes";
    plot.on("plotly_relayout", () => label(plot));
    if (div.dataset.topic) plot.on("plotly_click", ({ points: [one] }) => showSegment(div.dataset.topic, one.customdata ?? one.data.meta));
  });
}
function drawAll(within) { for (const div of within.querySelectorAll("[data-figure]")) draw(div); }

// Hexadecimal axes: a label at each multiple of a power of two, whatever part of the axis is seen.
function isHexadecimal(axis) { return axis.tickformat?.endsWith("x"); }
function step([low, high]) { return 2 ** Math.max(0, Math.ceil(Math.log2(Math.abs(high - low) / LABELS))); }
function label(plot) {
  const changed = AXES.filter((name) => isHexadecimal(plot.layout[name]) && plot.layout[name].dtick !== step(plot.layout[name].range));
  if (changed.length) Plotly.relayout(plot, Object.fromEntries(changed.map((name) => [`${name}.dtick`, step(plot.layout[name].range)])));
}

// What is drawn of segments, as links, since a picture does not answer the keyboard: sealed ones have no row in any table.
function link(div, data) {
  const names = new Map(data.flatMap((trace) => trace.customdata?.map((id, place) => [id, trace.hovertext[place]]) ?? [[trace.meta, trace.name]]));
  const place = div.querySelector("details.links") ?? div.appendChild(document.createElement("details"));
  if (place.dataset.ids === [...names.keys()].join()) return;
  Object.assign(place, { className: "links", innerHTML: "<summary></summary>" }).dataset.ids = [...names.keys()].join();
  place.firstChild.textContent = names.size === 1 ? "its segment as a link" : `its ${names.size} segments as links`;
  for (const [id, name] of names) {
    const one = document.createElement("a");
    Object.assign(one, { href: segmentAddress(div.dataset.topic, id), textContent: id, title: name.replaceAll("<br>", ", ") });
    Object.assign(one.dataset, { segment: id, topic: div.dataset.topic });
    place.append(" ", one);
  }
}

// Live: the page is fetched anew and what is marked as live is put in place where it changed, unless somebody writes or marks
// something in it. One question at a time.
const served = new Map(); // id of a live part to what the server last said of it: what is drawn and opened in it is not the server's
let looking = null;
function remember(within) { for (const part of within.querySelectorAll("[data-live]")) served.set(part.id, part.innerHTML); }
async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, REFRESH_MILLISECONDS);
}
function refresh() { return looking ??= look().finally(() => { looking = null; }); }
async function look() {
  const told = document.getElementById("state");
  try {
    const fresh = await pageAt(location.href);
    for (const old of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(old.id);
      if (next && old.isConnected && served.get(old.id) !== next.innerHTML) put(old, next);
    }
    await renewSegment();
    told.textContent = "";
  } catch (error) { told.textContent = `${error.reason ?? "no answer"}; tried again every ${REFRESH_MILLISECONDS / 1000} s`; }
}
async function pageAt(url) {
  const answer = await fetch(url, { headers: { "X-Refresh": "1" }, signal: AbortSignal.timeout(PATIENCE_MILLISECONDS) });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!answer.ok) throw Object.assign(new Error(answer.status), { reason: page.querySelector("main .bad")?.textContent });
  return page;
}
function put(old, next) {
  if (old.dataset.live === "fields") renewFields(old, next);
  else if (isBeingUsed(old)) return;
  else if (old.dataset.figure !== undefined) {
    old.querySelector("script").textContent = next.querySelector("script").textContent;
    draw(old);
  } else renew(old, next);
  served.set(old.id, next.innerHTML);
}
function isBeingUsed(part) {
  const focused = document.activeElement;
  const writes = part.contains(focused) && focused.matches("input, textarea, select");
  return writes || !document.getSelection().isCollapsed;
}
function renew(old, next) {
  const open = [...old.querySelectorAll("details[open]")].map((one) => one.id);
  const used = new Map([...old.querySelectorAll("form.act")].filter(wasUsed).map((form) => [identity(form), form]));
  const focused = document.activeElement;
  old.innerHTML = next.innerHTML;
  remember(old);
  for (const id of open) if (id) old.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
  for (const form of old.querySelectorAll("form.act")) { // what was written into it, and what it was answered, stays
    if (used.has(identity(form))) form.replaceWith(used.get(identity(form)));
  }
  if (old.contains(focused)) focused.focus({ preventScroll: true });
  if (window.Plotly) drawAll(old);
}
// A table of fields, a row each: what somebody wrote stays, and what it is compared with is renewed, also while he writes.
function renewFields(old, next) {
  for (const row of next.querySelectorAll("tr[id]")) {
    const mine = old.querySelector(`#${CSS.escape(row.id)}`);
    mine.className = row.className;
    for (const [place, cell] of [...row.cells].entries()) {
      const [field, now] = [mine.cells[place], cell].map((one) => one.querySelector("input"));
      if (!field) { mine.cells[place].innerHTML = cell.innerHTML; continue; }
      const isUntouched = field.value === field.defaultValue;
      Object.assign(field, { defaultValue: now.defaultValue, placeholder: now.placeholder });
      if (isUntouched) field.value = now.defaultValue;
    }
  }
}
function identity(form) {
  return [form.dataset.dag, ...[...form.querySelectorAll("input[type=hidden]")].map((field) => field.value)].join(" ");
}
function wasUsed(form) {
  return form.dataset.asks || form.querySelector("[data-answer]").childNodes.length > 0
    || [...form.elements].some((field) => field.value !== field.defaultValue && field.matches("input:not([type=checkbox]), textarea"));
}

// A segment, beside the pictures: shown when it is asked for, and renewed with the page.
function segmentAddress(topic, id) { return `${ROOT}/segment?${new URLSearchParams({ name: topic, segment_id: id })}`; }
async function showSegment(topic, id) {
  const panel = document.getElementById("segment");
  if (!panel || id === undefined) return;
  Object.assign(panel.dataset, { topic, id });
  for (const input of document.querySelectorAll("form.act input[data-segment]")) input.value = id;
  try { await renewSegment(true); } catch (error) {
    panel.replaceChildren(error.reason ?? "no answer");
    panel.hidden = false;
  }
}
async function renewSegment(isAskedFor = false) {
  const panel = document.getElementById("segment");
  if (!panel?.dataset.id || (panel.hidden && !isAskedFor)) return;
  const { topic, id } = panel.dataset;
  const said = (await pageAt(segmentAddress(topic, id))).querySelector("main");
  if (panel.dataset.id !== id || (!isAskedFor && (isBeingUsed(panel) || served.get("segment") === said.innerHTML))) return;
  served.set("segment", said.innerHTML);
  panel.replaceChildren(...said.childNodes);
  panel.hidden = false;
}

function parameterValue(text) { try { return JSON.parse(text); } catch { return text; } }

function parameterOf(word) { // max_segments=16
  const [name, ...value] = word.split("=");
  return [name, parameterValue(value.join("="))];
}

// Forms: the parameters of a DAG. Empty fields are left out, as in Airflow's own form.
function filledIn(form, button) {
  const conf = {};
  if (button?.name) conf[button.name] = button.value; // one of several answers
  for (const field of form.elements) {
    if (!field.name || field.matches("button")) continue;
    if (field.dataset.type === "parameter") { // only what was changed; what was emptied is taken back
      conf.parameters ??= {};
      if (field.value !== field.defaultValue) conf.parameters[field.name] = field.value === "" ? null : parameterValue(field.value);
      continue;
    }
    if (field.type !== "checkbox" && field.value === "") continue;
    if (field.type === "checkbox") conf[field.name] = field.checked;
    else if (field.dataset.type === "integer") conf[field.name] = Number(field.value);
    else if (field.dataset.type === "words") conf[field.name] = field.value.split(/[\s,]+/).filter(Boolean);
    else if (field.dataset.type === "parameters") conf[field.name] = Object.fromEntries(field.value.split(/\s+/).filter(Boolean).map(parameterOf));
    else conf[field.name] = field.value;
  }
  return conf;
}
function say(form, text, kind = "") {
  const place = form.querySelector("[data-answer]");
  place.className = kind;
  place.replaceChildren(text);
}
async function post(url, body) {
  const answer = await fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const document = await answer.json().catch(() => ({}));
  if (answer.ok) return document;
  const why = document.reason ?? document.detail ?? answer.statusText;
  throw new Error(answer.status === 403 ? "you may not run this DAG" : typeof why === "string" ? why : JSON.stringify(why));
}
async function preview(form, conf) {
  try {
    const told = await post(`${ROOT}/preview`, { dag_id: form.dataset.dag, conf });
    say(form, told.sentence);
  } catch (error) { say(form, error.message, "bad"); }
}
async function run(form, conf) {
  form.dataset.asks = "yes"; // so that a second click asks for no second run
  const buttons = [...form.querySelectorAll("button")].filter((button) => !button.disabled);
  for (const button of buttons) button.disabled = true;
  try {
    const note = `Asked for on Cleave's pages: ${Object.entries(conf).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ")}`;
    const asked = await post(`${AIRFLOW}/api/v2/dags/${form.dataset.dag}/dagRuns`, { logical_date: null, conf, note: note.slice(0, 1000) });
    say(form, "asked for in the run ");
    const place = form.querySelector("[data-answer]");
    place.append(intoAirflow(asked.dag_run_id, asked));
    follow(place, asked);
  } catch (error) {
    say(form, error.message, "bad");
  } finally {
    delete form.dataset.asks;
    for (const button of buttons) button.disabled = false;
  }
}
function intoAirflow(text, run) {
  const link = document.createElement("a");
  link.href = `${AIRFLOW}/dags/${run.dag_id}/runs/${encodeURIComponent(run.dag_run_id)}`;
  link.dataset.airflow = "";
  link.textContent = text;
  return link;
}

// A run that was asked for: how it stands is told until it has ended, as far as whoever looks may know.
async function follow(place, run) {
  const path = `/dags/${run.dag_id}/dagRuns/${encodeURIComponent(run.dag_run_id)}`;
  const told = document.createElement("span");
  place.append(told);
  for (let wait = FIRST_LOOK_MILLISECONDS; ; wait = Math.min(1.3 * wait, LATER_LOOKS_MILLISECONDS)) {
    await new Promise((done) => setTimeout(done, wait));
    if (!told.isConnected) return; // something else was asked for here, or the row has another state
    const [state, tasks] = await Promise.all([read(path), read(`${path}/taskInstances`)]);
    if (!state || !tasks) { told.replaceChildren(": how it stands cannot be read here"); return; }
    const failed = tasks.task_instances.find((one) => one.state === "failed");
    if (state.state === "failed") {
      place.className = "bad";
      told.replaceChildren(`: failed. ${failed ? await lastError(path, failed) : ""}`);
    } else told.replaceChildren(`: ${state.state === "success" ? "done" : state.state}`);
    if (["success", "failed"].includes(state.state)) { refresh(); return; }
  }
}
async function read(path) {
  const answer = await fetch(`${AIRFLOW}/api/v2${path}`, { headers: { Accept: "application/json" } }).catch(() => null);
  return answer?.ok ? answer.json() : null;
}
async function lastError(path, task) {
  const log = await read(`${path}/taskInstances/${task.task_id}/logs/${task.try_number}?full_content=true&map_index=${task.map_index}`);
  const line = log?.content?.findLast?.((one) => one.level === "error" || one.level === "critical");
  // From 3.3 on a refusal ends its task with the sentence; before, it is an exception.
  return line ? String(line.exit_code ?? line.error_detail?.[0]?.exc_value ?? line.event) : `The log of ${task.task_id} says why.`;
}
// The tab of a run: what it was asked with leads to the policy and the topic that it is about.
async function askedWith(place) {
  const run = await read(`/dags/${place.dataset.asked}/dagRuns/${encodeURIComponent(place.dataset.run)}`);
  const links = [["level", "policy", "level"], ["topic", "topic", "name"]].filter(([field]) => typeof run?.conf?.[field] === "string");
  for (const [field, path, name] of links) {
    const link = document.createElement("a");
    link.href = `${ROOT}/${path}?${new URLSearchParams({ [name]: run.conf[field] })}`;
    link.textContent = `${path} of ${run.conf[field]}`.replace("topic of ", "topic ");
    place.append(link, " ");
  }
  if (run?.note) place.append(run.note);
}
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form.act")) return;
  event.preventDefault();
  if (form.dataset.asks) return;
  const conf = filledIn(form, event.submitter);
  if (event.submitter?.value === "preview") preview(form, conf); else run(form, conf);
});

// Links into Airflow: this page is in a frame that may not lead its parent elsewhere, but the parent's router may be asked.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link) return;
  if (link.dataset.segment !== undefined && document.getElementById("segment")) {
    event.preventDefault();
    showSegment(link.dataset.topic, link.dataset.segment);
  } else if (link.dataset.airflow !== undefined && outer() && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    window.parent.history.pushState({}, "", link.href);
    window.parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
  }
});

// Keys: the digits lead to the pages, a slash into the search, Escape closes the segment.
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  const link = document.querySelector(`header a[data-key="${CSS.escape(event.key)}"]`);
  if (link) location.href = link.href;
  else if (event.key === "/") { document.querySelector("input[type=search]")?.focus(); event.preventDefault(); }
  else if (event.key === "Escape") { const panel = document.getElementById("segment"); if (panel) panel.hidden = true; }
});

addEventListener("DOMContentLoaded", () => {
  remember(document);
  for (const place of document.querySelectorAll("[data-asked]")) askedWith(place);
  if (window.Plotly) drawAll(document);
  if (document.querySelector("[data-live]")) setTimeout(live, REFRESH_MILLISECONDS);
});
