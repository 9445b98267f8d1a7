"""The page's style sheet: one column that fits a phone, figures side by side where there is room, dark if wanted."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #5a626c; --line: #d9dee4; --paper: #ffffff; --card: #f5f7f9;
  --blue: #00588c; --amber: #8a4b00; --amber-card: #fdf3e3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --soft: #a7b0ba; --line: #3a424c; --paper: #14181c;
  --card: #1e242a; --blue: #7cc4f5; --amber: #f3c27c; --amber-card: #33291a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 17px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header, main { max-width: 62rem; margin: 0 auto; padding: 0 1.1rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .8rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .3rem; }
p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
a { color: var(--blue); }
section { padding: 1.6rem 0; border-top: 1px solid var(--line); scroll-margin-top: .5rem; }
header + main > section:first-child { margin-top: 1.4rem; }
.source { color: var(--soft); font-size: .92rem; }
.badge { font-size: .8rem; font-weight: 600; padding: .08rem .5rem; border-radius: 1rem; white-space: nowrap;
  border: 1px solid var(--line); color: var(--soft); vertical-align: .1em; }
.badge.quick, .badge.stand-in { color: var(--amber); background: var(--amber-card); border-color: transparent; }
.glance { list-style: none; margin: .6rem 0 0; padding: 0; }
.glance li { padding: .45rem 0; overflow-wrap: anywhere; }
.glance span:not(.badge) { color: var(--soft); font-size: .95rem; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .9rem; }
pre { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; overflow-x: auto; margin: .8rem 0; }
.figures { display: grid; gap: 1rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; max-width: 40rem; }
figure img { display: block; width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line);
  border-radius: .5rem; padding: .4rem; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .35rem; }
.scroll { overflow-x: auto; margin: 1rem 0; max-width: max-content;
  border: 1px solid var(--line); border-radius: .5rem; }
/* Whole pixels: the sticky cells of the next row would cover borders that fall between two. */
table { border-collapse: separate; border-spacing: 0; font-size: 16px; line-height: 24px;
  font-variant-numeric: tabular-nums; }
th, td { padding: 7px 13px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { background: var(--card); font-weight: 600; white-space: normal; vertical-align: bottom; min-width: 5.5rem; }
th:first-child { text-align: left; font-weight: 600; position: sticky; left: 0; background: var(--paper);
  min-width: 7rem; }
thead th:first-child { background: var(--card); }
@media (max-width: 44rem) { table { font-size: 15px; line-height: 22px; } th, td { padding: 6px 8px; }
  th:first-child { white-space: normal; max-width: 9rem; } }
.shortened, .notes { border-radius: .5rem; padding: .7rem 1rem; margin: .8rem 0; max-width: 46rem; font-size: .95rem; }
.shortened { background: var(--amber-card); }
.notes { background: var(--card); }
.shortened ul, .notes ul { margin: .3rem 0 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
"""
