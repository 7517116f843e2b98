"""Writes tests/golden/templates/cases.json: templates, variables and what transformers' own chat-template environment renders for them.

    python scripts/reference/make_templates.py [--count N] [--seed S] [--out FILE]

Five groups: the tables of the language (white space, precedence, values), chats through family templates (our own, of the form of the released ones),
continued messages, chats with tools, and seeded random templates. A chat with tools is stored as a client sends it (arguments as JSON text ...), and
rendered as transformers wants it. A case is {"t": template or name of a family, "v": variables, "o": text} or {"t", "v", "e": message}: the reference fails;
the message is given when the template itself raised it.
"""
import argparse
import json
import random
import re
from datetime import datetime
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils as ctu

from common import CHAT_TEMPLATE as GEMMA3
from make_qwen_parts import TEMPLATE_35 as QWEN35

HERE = Path(__file__).resolve().parent
NOW = datetime(2025, 7, 26, 9, 5, 3)


class FrozenClock:
    @staticmethod
    def now():
        return NOW


ctu.datetime = FrozenClock

# ------------------------------------------------------------------------------------------------------------ running the reference


def plain(template, variables):
    """Text, or (None, message): message is None unless the template raised it."""
    try:
        compiled = ctu._cached_compile_jinja_template(template)
        text = compiled.render(**variables)
    except jinja2.exceptions.TemplateSyntaxError:
        return None, None
    except jinja2.exceptions.TemplateError as e:
        raised = type(e) is jinja2.exceptions.TemplateError
        return None, (str(e) if raised else None)
    except Exception:
        return None, None
    return text, None


def chat(template, messages, **kwargs):
    try:
        return ctu.render_jinja_template([messages], chat_template=template, **kwargs)[0][0], None
    except jinja2.exceptions.TemplateError as e:
        return None, (str(e) if type(e) is jinja2.exceptions.TemplateError else None)
    except Exception:
        return None, None


# What Jinja has and no released template uses is refused here (jinja.h): these cases must be errors.
REFUSED = re.compile(r"""
    \|\s*(abs|attr|batch|center|float|forceescape|round|slice|sum|truncate|wordcount)\b
  | is\ (not\ )?(sameas|lower|upper|filter|test|escaped)\b
  | \*\* | \b0[xob]\d | \d_\d | \{%\ print | recursive | varargs | cycler
  | \.(casefold|center|count|format_map|index|islower|isupper|ljust|rindex|rjust|swapcase|zfill)\(
  | \.(copy|cycle|changed)\(
  | \.index$ | rsplit\((\)|none) | with\('\w+',\ \d | int\((\d+,|base) | 'role,content'
  | '[^'{}]*%[-+\ .\dxXeEfgG][^'{}]*'\s*(%\ |\|\s*format) | \{\w*[:!.\[]\S*\}.*format\(
""", re.VERBOSE)


def case(t, v, result):
    text, message = result
    if text is not None and REFUSED.search(t):
        text, message = None, None
    c = {"t": t, "v": v}
    if text is not None:
        c["o"] = text
    else:
        c["e"] = message
    return c


# ------------------------------------------------------------------------------------------------------------------ language tables

WHITE_SPACE = [
    "  {% if true %}\n  yes\n  {% endif %}\nend", "a\n  {%- if true %}\n  yes\n  {%- endif %}\nend", "a  {% if true %}b{% endif %}  c",
    "a\n  {{ 'x' }}\nb", "a\n  {{- 'x' -}}\n  b", "a\n  {# c #}\nb", "a\n  {%+ if true %}b{% endif +%}\nc", "{{ 'x' }}\n", "a\n\n{{q}}\n\n",
    "   {{ 'a' }}   \n   {% set q=1 %}   \n   b", "<s>\n    {%- if v %}P{% endif -%}\n    <v>\n    {%- if true %}z{% endif %}",
    "a\r\nb\rc\n\r\nd", "a {#- x -#} b", "a {# {{ x }} {% y %} #} b", "{% raw %}{{ a }} {% b %} {# c #}{% endraw %}", "x\n  {% raw %}\n a\n  {% endraw %}\n y",
    "x {%- raw -%}  a  {%- endraw -%}  y", "{% if true -%}\n\n  a\n\n{%- endif %}", "{%- set a = 1 -%}\n\n a \n{{- a -}}\n\n", "\n{% set a = 1 %}\n\n{{ a }}\n\n",
    "{{'a'}}\n{{'b'}}\n", "\t{% if true %}\t\n\tx\n\t{% endif %}\t\n", "a\u00a0{{- 1 -}}\u2003b", "  {#c#}  \nx", "{##}x{#-#}y", "a\n{% if true %}\n\n{% endif %}\nb",
    "{{ '\n' }}|{{ 'a\nb' }}", "{{- '  a  ' -}}", "{%if true%}1{%endif%}", "{% if true %}\n  {% if true %}\n  x\n  {% endif %}\n{% endif %}", "{{1}}{{-1}}{{+1}}{{ -1 }}",
    "line {% for i in [1,2] %}\n  - {{ i }}\n{% endfor %}\nend", "line\n{% for i in [1,2] -%}\n  - {{ i }}\n{% endfor %}\nend", "{% for i in [1,2] +%}\n{{ i }}{% endfor %}",
    "x{#+ c +#}\ny", "  {#+ c +#}\ny", "", "\n", "\n\n", "{", "{ {", "}}", "%}", "{{ '}}' }}", "{{ '%}' }}{% set a = '%}' %}", "{{ {'a': {}} }}", "{{ {'a':{}}}}", "a {% set x = {'k':{'j':1}}%}{{x.k.j}}",
]

EXPRESSIONS = r"""
1 + 2 ~ 3
1 ~ 2 + '3'
-2 ** 2
2 ** 3 ** 2
2 ** -1
'a' | upper ~ 'b' | lower
l|length > 3
l|length - 1
-i|abs
not x is defined
not nope | default(false)
none ~ 'a' ~ 1 ~ 1.5 ~ true ~ [1,'b']
1e16
1e15
0.1+0.2
1e-5
1e-4
123456789.125
1.5e300*1e10
-0.0
100.0
1e22
5e-324
1.7976931348623157e308
7/2
6/2
7//2
-7//2
-7%3
7%-3
7.5//2
-7.5%2
7.5%-2
1/0
1%0
1.0//0
'a,b,,c'.split(',')
' a  b '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
'a,b,c'.rsplit(',', 1)
'a,b,c'.split(',', 1)
'a,b,c'.split(',', maxsplit=1)
''.split(',')
''.split()
'a'.split('')
'xyaxy'.strip('yx')
'xyaxy'.lstrip('yx')
'xyaxy'.rstrip('yx')
'héé☃😀'[::-1]
'héé☃😀'[1:4]
'héé☃😀'[-2]
'héé☃😀'[9]
'héé☃😀'|length
'héé☃😀'[::2]
'abc'[5:]
'abc'[-10:2]
l[5:]
l[-10:2]
l[::-1]
l[::0]
l[2:0:-1]
l[-1:]
l[:-1]
l[true]
l[1.0]
l['a']
l[none]
l.0
l.5
d['k']
d.k
d.items
d['items']
d.nope
d.nope.more
d['nope']['more']
s.nope
s.nope.x
none.x
none.x.y
i.x
(1).x
{'b':1,'A':2,'a':3}|dictsort
{'b':1,'A':2,'a':3}|dictsort(true)
{'b':1,'A':2,'a':3}|dictsort(by='value', reverse=true)
{1:2,'a':3}|dictsort
['a','null']|reject('equalto','null')|list|first
["a'b"]
['a"b\'c']
['\n','\x7f','\u200b']
['é', '\u00a0', '\u3000', '\\', '\t', '\0']
[]|first is defined
[]|first
[]|last
msgs|map(attribute='nope')|list
msgs|map(attribute='content')|join('|')
msgs|map(attribute='nope', default='D')|join('|')
msgs|selectattr('role','equalto','user')|list|length
msgs|selectattr('role')|map(attribute='role')|list
msgs|rejectattr('role','in',['user'])|map(attribute='role')|list
d.get('zz','D')
d.get('zz') is none
d['zz'] is none
d.get('k')
d.keys()
d.values()
d.items()
d.items()|list
d|items|list
d|list
d|length
d|tojson
{1:2,true:3,none:4,1.5:5}|tojson
{'a':[1,{'b':[]}],'c':{}}|tojson(indent=2)
{'a':[1,{'b':[]}],'c':{}}|tojson(indent=0)
{'a':[1,{'b':[]}],'c':{}}|tojson(indent='--')
{'b':1,'a':2}|tojson(sort_keys=true)
{'b':[1,2],'a':2}|tojson(separators=(',',':'))
{'b':[1,2],'a':2}|tojson(indent=1,separators=(',',':'))
'é😀\u2028\x7f'|tojson
'é😀\u2028\x7f'|tojson(ensure_ascii=true)
'é😀'|tojson(ensure_ascii=False)
'\u2028<>&\'"/\\\n\t\x7f\x01\r\b\f'|tojson
[1.0, 1e3, 1e100, -0.0, 1.5]|tojson
[none, true, false]|tojson
nope|tojson
(1,2)|tojson
range(3)|tojson
'x'|tojson|safe
l.append(4)
d.pop('a')
d.update({})
l.sort()
l.index(2)
l.count(2)
l.index(9)
l.append
(l + [1]) is sequence
1 == 1.0
true == 1
'1' == 1
none == false
nope == ''
nope == nada
[1,[2]] == [1,[2]]
[1] == (1,)
{'a':1} == {'a':1.0}
1 < 'a'
1 < none
'a' < 'b'
[1,2] < [1,3]
[1] < (1,)
1 < 2 < 3
1 < 2 > 3
1 in l
1 not in l
not 1 in l
'a' in 'abc'
1 in 'abc'
nope in 'abc'
nope in l
'a' in nope
'a' in none
'k' in d
[1] in d
none|length
nope|length
5|length
none|list
'abc'|list
none is iterable
nope is iterable
nope is sequence
d is sequence
d is mapping
d.items() is sequence
d.items() is iterable
'a' is sequence
'a' is iterable
5 is iterable
(l|map('string')) is sequence
(l|map('string')) is iterable
(l|map('string')) is string
true is number
true is integer
1 is true
true is true
1 is integer
1.0 is float
1 is float
1 is odd
2 is even
6 is divisibleby 3
6 is divisibleby(4)
'a' is upper
'A' is upper
'A1' is upper
'1' is lower
5 is lower
'ab' is lower
none is none
1 is not none
nope is undefined
nope is not defined
1 is in l
1 is in [2]
1 is eq 1
1 is ne 1
1 is gt 0
1 is lessthan 2
1 is ge(1)
'x' is sameas 'x'
true is sameas true
1 is boolean
false is boolean
range is callable
'a' is callable
nope is callable
'upper' is filter
'nope' is filter
'odd' is test
'a' if false
'a' if true
'a' if false else 'b'
'a' if false else 'b' if false else 'c'
('a' if false) is defined
nope
nope.x
nope['x']
nope + 1
nope ~ 'a'
nope()
nope|default('x')
none|default('x')
none|default('x', true)
''|default('x', true)
''|d('x', boolean=true)
''|default
none|trim
5|trim
nope|trim
'  a '|trim
'xxaxx'|trim('x')
'\u00a0\u2003a\u3000\x1c'|trim
'\u200ba'|trim
nope|upper
none|upper
'ß'|upper
'ÀÉ'|lower
'àé'|capitalize
'hello wORLD-foo (bar) [x {y'|title
'hello wORLD-foo they\'re'.title()
'hELLO wORLD'.capitalize()
'aBc'.swapcase()
'a-b-a'|replace('a','x')
'a-b-a'|replace('a','x',1)
'abc'.replace('','-')
'abc'.replace('','-',2)
12321|replace(2,'x')
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb'|indent('> ', true)
'a\nb\n'|indent
''|indent
5|indent
'3.9'|int
'x'|int
'x'|int(7)
' 12 '|int
'1_000'|int
'0x1f'|int(base=16)
'ff'|int(0,16)
'0b11'|int(0,0)
''|int
none|int
true|int
3.99|int
-3.99|int
'1e3'|int
'inf'|int
'nan'|int
'1.5'|float
'x'|float
'x'|float(2.5)
'1e5'|float
' -1.5 '|float
3|float
none|float
nope|int
2.5|round
3.5|round
2.675|round(2)
42|round
1234|round(-2)
1250|round(-2)
1234.5|round(-2)
42.55|round(1,'floor')
42.51|round(1,'ceil')
-2.5|round
5|abs
-5.5|abs
'a'|abs
[3,1,2]|sort
['b','A','c']|sort
['b','A','c']|sort(case_sensitive=true)
['b','A','c']|sort(reverse=true)
[1,'a']|sort
msgs|sort(attribute='role')|map(attribute='role')|list
msgs|sort(attribute='role,content')|map(attribute='content')|list
[3,1,2]|max
[3,1,2]|min
[]|max
['b','A']|min
['a','A','b',1,1.0]|unique|list
[[1],[1]]|unique|list
[1,2,3]|sum
[1.5,2]|sum
['a']|sum
[{'a':1},{'a':2}]|sum(attribute='a')
[1,2]|sum(start=10)
[[1],[2]]|sum(start=[])
[1,2,3]|reverse|list
'abc'|reverse
l|reverse
[1,2,3,4,5]|batch(2)|list
[1,2,3,4,5]|batch(2,'x')|list
[1,2,3,4,5]|slice(2)|list
[1,2,3,4,5]|slice(3,'x')|list
msgs|groupby('role')
msgs|groupby('role')|map(attribute='grouper')|list
msgs|groupby('role')|map(attribute='list')|map('length')|list
[1,none,'',0,2]|select|list
[1,none,'',0,2]|reject|list
[1,2,3]|select('odd')|list
[1,2,3]|select('gt', 1)|list
[1,2,3]|select('nope')|list
[1,2,3]|map('nope')|list
['a','b']|map('upper')|join
['a','b']|map('replace','a','z')|list
['a','b']|map('default','x')|list
none|map('upper')|list
[1,2,3]|join('-')
[1,none,'a']|join(', ')
[{'a':1},{'a':2}]|join(',', attribute='a')
'abc'|join('-')
nope|join
5|join
'ab cd ef gh'|truncate(8)
'ab cd ef gh'|truncate(8, leeway=0)
'ab cd ef gh'|truncate(8, true, leeway=0)
'abcdefghijklmnop'|truncate(8, false, '…', 0)
'abc'|truncate(2)
'one two,three'|wordcount
'ab'|center(7)
'%s-%05d-%.2f-%5s|%-5s|'|format('a', 42, 3.14159, 'b', 'c')
'%(a)s %(b)r'|format(a=1, b='x')
'%s %s' % ('a', 1)
'%s' % 'a'
'%s' % [1,2]
'%d%%' % 5
'%x %X %e %g' % (255, 255, 12345.678, 0.00001)
'%5.1f|%+d|% d|%-6d|%06d' % (2.25, 3, 4, 5, -6)
'%s %s' % 'a'
'%s' % ('a','b')
'a' % 'b'
'%d' % 'x'
'%d' % 3.9
'%r' % 'a'
'{} {}'.format('a', 1)
'{1} {0}'.format('a', 1)
'{a} {b} {c}'.format(a=1, b=[2], c='v')
'{:5}|{:5}|{:05d}|{:+d}'.format('a',1,42,7)
'{:.2f} {:e} {:x}'.format(3.14159, 1234.5, 255)
'{{}} {}'.format(1)
'{} {0}'.format(1)
'{}'.format()
'{:.2}'.format('abc')
'{}'.format(none)
('<a>'|safe) + '<b>'
'<b>' + ('<a>'|safe)
('<a>'|safe) ~ '<b>'
'<a>&"\''|e
('<a>'|safe)|e
('<a>'|safe)|trim + '<'
('<a>'|safe)|replace('a','b') + '<'
('<a>'|safe)|upper + '<'
['<a>'|safe]
'a' + 1
'a' + none
[1] + [2]
(1,) + (2,)
[1] + (2,)
'ab' * 3
3 * 'ab'
[1] * 2
'a' * -1
'a' * 'b'
-'a'
+'a'
-true
true + true
1 + 1.5
'x'.join(['a','b'])
'x'.join([1])
','.join('abc')
'abc'.find('c')
'abc'.find('z')
'abcabc'.rfind('b')
'abc'.index('z')
'aXbX'.count('X')
'aaa'.count('')
'abc'.startswith('ab')
'abc'.startswith(('x','a'))
'abc'.endswith('bc')
'abc'.endswith('b', 0, 2)
'abc'.startswith(1)
'a b'.partition(' ')
'a-b-c'.rpartition('-')
'abc'.partition('z')
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
'a\nb\r\nc'.splitlines()
'a\nb\n'.splitlines(true)
'42'.zfill(5)
'-42'.zfill(5)
'ab'.ljust(4) ~ '|'
'ab'.rjust(4, '.')
'ab'.center(5, '*')
'abc'.isalpha()
'12'.isdigit()
'a1'.isalnum()
' '.isspace()
'AB'.isupper()
'ab'.islower()
'abc'.upper().lower().title()
'abc'.nope()
'abc'.encode
'abc'.__class__
d.__class__
''.__class__.__mro__
d._x
range(3)
range(1,7,2)|list
range(5,0,-2)|list
range(3)[1]
range(3)|length
range(0)
range(3) is sequence
range(200000)
range(1.5)
dict(a=1, b='x')
dict({'a':1}, b=2)
dict([('a',1)])
namespace(a=1).a
namespace(a=1)['a']
namespace({'a':1}).a
namespace(a=1).b
namespace(_a=1)
namespace(a=1)
strftime_now('%d %b %Y')
strftime_now('%A %B %e %H:%M:%S %I%p %j %U %W %w %y %m %-d %%')
raise_exception('no: é')
raise_exception(5)
(1,)
()
(1,2)
1, 2
[1,2,]
{'a':1,}
(1,2)[0]
(1)
'a' 'b' "c"
'\q\'\"\\\a'|tojson
'\x41\u00e9\U0001F600\101\
b'
0x1f + 0o7 + 0b11 + 1_000
1.5e3
1_0.5
a.0.1
true and 'x'
'' or 'y'
'' and 'y'
not ''
not not 1
1 or nope.x
0 and nope.x
loop
loop is defined
x
self
[1,2,3][l[0]]
l[l|length - 1]
d[s]
'k' ~ 1 in d
'a' in 'ab' ~ 'c'
1 + 2 * 3 - 4 / 2 % 3
2 * -3
2 - -3
(2 + 3) * 4
'%s' % s|upper
[1,2]|first + 3
5 if x else 6 + 1
(5 if nope else 6) + 1
[i for i in l]
lambda: 1
a b
1 +
)
'abc
{{ 1 }}
foo(
d.k = 1
1 is 2
x|nope
x is nope
nope|nope2 if false else 1
cycler('a','b').next()
joiner(',')()
lipsum is defined
9223372036854775807
-9223372036854775807 - 1
msgs[0].content
msgs[-1]['content']
msgs|last
msgs|length
msgs[1:]|length
msgs[0]|tojson
msgs[0]
msgs[0].items()|list
'a'|attr('upper') is defined
d|attr('k') is defined
u|upper
u|lower
u|title
u|tojson
[u]
u.split()
u|wordcount
l|first|string + 'x'
[true, none]|map('string')|join
'abc'|map('upper')|list
d|map('upper')|list
d|join(',')
d|first
d|last
d|reverse|list
d|sort
d|max
d.copy()
l.copy()
'a'.x.y
msgs.0.role
msgs['0']
[[1,2],[3]]|map('first')|list
[[1,2],[3]]|map(attribute=0)|list
[[1,2],[3]]|map(attribute='0')|list
[{'a':{'b':1}}]|map(attribute='a.b')|list
'1' + '2' | int
1 < 2 == true
'x' in ['x'] and 'y' not in ['x']
none > 1
nope > 1
'b' > 'a' > 'A'
1.0 == true
{1:'a'}[1.0]
{1:'a'}[true]
{'1':'a'}[1]
{(1,2):3}[(1,2)]
{[1]:2}
l[1:2][0]
l[:2]
l[1:]
l[0:3:2]
'abcdef'[-3:-1]
'abcdef'[4:1:-1]
l[nope:]
l['a':]
5[0]
none[0]
none['a']
true[0]
nope|list
nope|string
nope|tojson
nope|default
nope|first
nope|join(',')
nope|map('upper')|list
nope|items|list
nope|dictsort
nope|select|list
nope|sort
nope|reverse|list
nope|trim|length
nope ~ nope
nope == none
nope != none
nope is none
nope|int
nope|float
nope|abs
nope|round
nope|sum
nope|last
nope in [nope]
-nope
not nope
nope or 'x'
nope and 'x'
nope if nope else 'z'
[nope]
[nope]|join(',')
{'a':nope}
'%s' % nope
nope % 2
nope * 2
2 * nope
'a' + nope
nope[0:1]
l[nope]
d[nope]
'abc'[nope]
nope|length == 0
nope|upper|lower
1|string|length
1.0|string
true|string
none|string
l|string
d|string
-5 // 2
5 // -2.0
-5 % -3
5.5 % 2
2 ** 0.5
0 ** 0
2 ** 62
4 ** 0.5
1e308 * 10
-1e308 * 10
1e400
""".strip("\n").split("\n")

STATEMENTS = [
    "{% for i in l %}{% set y=i %}{% endfor %}{{ y }}", "{% set v=1 %}{% for i in l %}{{v}}{% set v=i %}{{v}}{% endfor %}|{{v}}",
    "{% set ns=namespace(t=1) %}{% for i in [1,2,3] %}{% set ns.t=ns.t+i %}{% endfor %}{{ns.t}}", "{% for i in l if i > 1 %}{{loop.index}}/{{loop.length}} {% endfor %}",
    "{% for m in [1,2][::-1] %}{{ loop.index0 }}{{ m }}{% endfor %}", "{% for a in undefinedvar %}x{% else %}E{% endfor %}", "{% for a in none %}x{% endfor %}", "{% for a in 5 %}x{% endfor %}",
    "{% macro r(n) %}{{n}}{% if n > 1 %}{{ r(n-1) }}{% endif %}{% endmacro %}{{ r(4) }}", "{% macro m(a,b='B',c=None) %}({{a}},{{b}},{{c}}){% endmacro %}{{m()}}{{m(1)}}{{m(1,c=2)}}{{m(b=3,a=4)}}",
    "{% macro m(a) %}{{a}}{% endmacro %}{{m(1,2)}}", "{% macro m(a) %}{{a}}{% endmacro %}{{m(z=2)}}", "{% macro m(a) %}{{a}}{{varargs}}{{kwargs}}{% endmacro %}{{m(1,2,3,z=4)}}",
    "{% macro a1() %}[{{ b1() }}]{% endmacro %}{% macro b1() %}B{% endmacro %}{{ a1() }}", "{% set d.q = 1 %}", "{% set x.q = 1 %}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% macro m(a, b=a) %}{{a}}{{b}}{% endmacro %}{{m(1)}}", "{% set x=1 %}{% macro m() %}{{x}}{% endmacro %}{% set x=2 %}{{m()}}", "{% macro m() %}{{i}}{% endmacro %}{% for i in l %}{{m()}}{% endfor %}",
    "{% for i in l %}{% macro m() %}{{i}}{% endmacro %}{{m()}}{% endfor %}", "{% set a, b = 1, 2 %}{{a}}{{b}}", "{% set a, b = [1] %}", "{% set (a, b) = (1, 2) %}{{b}}", "{% for k, v in d.items() %}{{k}}={{v}};{% endfor %}", "{% for k, v in d|items %}{{k}};{% endfor %}", "{% for (k, v) in d|dictsort %}{{k}};{% endfor %}",
    "{% for a, b in [[1,2],[3]] %}{{a}}{% endfor %}", "{% for k in d %}{{k}}{{ ',' if not loop.last }}{% endfor %}", "{% set x %}a{{ 1 }}b{% endset %}{{ x }}|{{ x|length }}", "{% set x | upper | trim %} ab {% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y }}",
    "{% filter upper %}ab{{ 'c' }}{% endfilter %}", "{% filter replace('a','b')|upper %}banana{% endfilter %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{i}}{% endfor %}", "{% break %}", "{% if true %}{% continue %}{% endif %}",
    "{% for i in [1,2] %}{% for j in [] %}{% else %}{% break %}{% endfor %}x{% endfor %}done", "{% for i in [1,2] %}{% for j in [1,2,3] %}{% if j == 2 %}{% break %}{% endif %}{{i}}{{j}} {% endfor %}{% endfor %}",
    "{% call(x) wrap() %}[{{x}}]{% endcall %}", "{% macro wrap() %}<{{ caller(5) }}>{% endmacro %}{% call(x) wrap() %}[{{x}}]{% endcall %}", "{% macro wrap(a) %}<{{a}}{{ caller() }}>{% endmacro %}{% call wrap('q') %}body{% endcall %}", "{% macro wrap() %}<{{ caller }}>{% endmacro %}{{ wrap() }}",
    "{% with a=1, b=2 %}{{a}}{{b}}{% endwith %}{{a}}", "{% set a=5 %}{% with a=1, b=a %}{{a}}{{b}}{% endwith %}{{a}}", "{% with %}{% set z=1 %}{{z}}{% endwith %}{{z}}", "{% generation %}a{% set q=1 %}{% endgeneration %}{{q}}", "{% for i in l %}{% generation %}{{i}}{{loop.index}}{% endgeneration %}{% endfor %}",
    "{% for i in l %}{{loop.index}}{{loop.index0}}{{loop.revindex}}{{loop.revindex0}}{{loop.first}}{{loop.last}}{{loop.length}}{{loop.depth}}{{loop.depth0}};{% endfor %}", "{% for i in l %}{{loop.previtem}}<{{i}}>{{loop.nextitem}} {% endfor %}", "{% for i in l %}{{loop.previtem is defined}}{{loop.nextitem is defined}} {% endfor %}",
    "{% for i in l %}{{loop.cycle('a','b')}}{% endfor %}", "{% for i in [1,1,2] %}{{loop.changed(i)}}{% endfor %}", "{% for i in l %}{{ loop.nope }}{% endfor %}", "{% for i in l %}{{ loop.parent.x }}{% endfor %}", "{% for i in [[1,[2]],[3]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "{% for i in [[1,[2]],[3]] recursive %}{{ loop.depth }}{{ loop(i) if i is iterable else i }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for i in l %}{% endfor %}{{ loop is defined }}{{ i is defined }}", "{% for i in l %}{% if loop.first %}{% set f = i %}{% endif %}{{ f }}{% endfor %}", "{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }}", "{% if true %}{% set q = 1 %}{% endif %}{{ q }}",
    "{% if x %}a{% elif i %}b{% else %}c{% endif %}", "{% if nope %}a{% else %}c{% endif %}", "{% if nope.x %}a{% endif %}", "{% if true %}a{% else %}b{% elif true %}c{% endif %}", "{% if 1, 2 %}t{% endif %}", "{% if () %}t{% else %}f{% endif %}", "{% if true: %}y{% endif %}",
    "{% if false %}{{ x|nope }}{% endif %}ok", "{% if true %}{{ x|nope }}{% endif %}ok", "{% for a in [] %}{{ x|nope }}{% endfor %}ok", "{% if false %}{% for a in [] %}{{ x|nope }}{% endfor %}{% endif %}ok", "{{ (x|nope) if false else 'ok' }}", "{{ 'ok' if true else x|nope }}", "{{ 'ok' if true else x is nope }}", "{% if false %}{{ x is nope }}{% endif %}ok", "{{ [x|nope if false] }}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% do 1 %}", "{% nope %}", "{% if true %}", "{% endif %}", "{% for %}", "{% for i l %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% set a.b.c = 2 %}", "{% set a %}", "{% macro %}{% endmacro %}", "{% macro m(a=1,b) %}{% endmacro %}", "{{ }}", "{{ 1", "{% if 1 %", "{# x", "{% raw %}x", "{{ 'a }}", "{{ a! }}", "{{ (1 }}", "{{ 1) }}", "{{ [1} }}",
    "{% print 1, 2 %}", "{% set x = 1, 2 %}{{ x }}", "{% set x = [1,2] %}{{ x.append(3) }}", "{{ m(1) }}{% macro m(a) %}x{% endmacro %}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for i in l %}{{ m() }}{% endfor %}", "{% set m = 1 %}{% macro m() %}x{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m.name }}{{ m is callable }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}{{ inner is defined }}",
    "{% macro m(*a) %}{% endmacro %}", "{{ m(*[1,2]) }}", "{% macro m(a,b) %}{{a}}{{b}}{% endmacro %}{{ m(*[1,2]) }}{{ m(**{'a':3}) }}{{ m(1, *[2]) }}{{ m(b=1, *[2]) }}", "{% macro m(a) %}{{ a|default('none') }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}", "{% macro j(d, lvl=0) %}{% for k, v in d|dictsort %}{{ '  ' * lvl }}{{ k }}:{% if v is mapping %}{{ '\\n' }}{{ j(v, lvl + 1) }}{% else %}{{ v }}{{ '\\n' }}{% endif %}{% endfor %}{% endmacro %}{{ j({'b': {'z': 1, 'a': {'q': 2}}, 'a': 0}) }}",
    "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.next() }}", "{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select %}{% for i in g %}{{ i }}{% endfor %}{% for i in g %}{{ i }}{% else %}none{% endfor %}", "{% set it = d.items() %}{{ it|list }}{{ it|list }}{{ it|length }}", "{% for i in l|map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in l %}{% set ns.x = ns.x + [i * 2] %}{% endfor %}{{ ns.x }}", "{% set a = 'x' %}{% set b = a ~ 'y' %}{{ b }}{{ a }}", "{% set range = 5 %}{{ range }}", "{% for range in [1] %}{{ range }}{% endfor %}{{ range(2)|list }}", "{% set loop = 3 %}{{ loop }}", "{% for i in l recursive %}{{ i }}{% endfor %}", "{% for i in 'héy' %}{{ i }}.{% endfor %}", "{% for i in {} %}x{% else %}e{% endfor %}", "{% for i in l if i > 5 %}x{% else %}e{% endfor %}", "{% for i in [3,1,2]|sort %}{{ i }}{% endfor %}",
    "{% set x = 5 if nope %}{{ x is defined }}", "{% if 'a' in 'abc' and 1 not in [2] %}y{% endif %}", "{% if not (1 and 0) or nope %}y{% endif %}", "{{ raise_exception('stop ' ~ 1) }}", "a{{ raise_exception('x') if false }}b", "{% if msgs[0].role == 'system' %}{% set sys = msgs[0].content %}{% set rest = msgs[1:] %}{% else %}{% set rest = msgs %}{% endif %}{{ rest|length }}", "{%- for m in msgs -%}\n{{ m.role }}: {{ m.content }}\n{% endfor %}", "{{ msgs|map(attribute='role')|unique|join(',') }}",
    "{% set ns = namespace(found=false) %}{% for m in msgs %}{% if m.role == 'user' %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}", "{% for m in msgs[::-1] %}{% set i = (msgs|length - 1) - loop.index0 %}{{ i }}{{ m.role[0] }} {% endfor %}", "{{ '</think>' in 'a</think>b' and 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}", "{{ ('x</think>y'.split('</think>')|last)|trim }}", "{% set t = 'a<|x|>b'.split('<|x|>') %}{{ t[0] }}{{ t[1] }}", "{% macro m(x) -%}  {{ x }}  {%- endmacro %}[{{ m(1) }}]", "{% macro a(x) %}{{ x }}{% endmacro %}{% set r = a('<b>') %}{{ r + '<c>' }}", "{{ [1,2,3]|map('string')|join('+') ~ '=' ~ [1,2,3]|sum }}",
]

BASE = {
    "l": [1, 2, 3], "i": 5, "s": "k", "u": "Ünï çødé ß Ǆ 😀 ΑΣ", "d": {"k": "v", "items": "I", "n": {"m": [1]}}, "x": None, "a": [[10, 11], [12]],
    "msgs": [{"role": "system", "content": "Be"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "x"}],
}


def tables():
    out = []
    for t in WHITE_SPACE + ["{{ " + e + " }}" for e in EXPRESSIONS] + ["{{ (" + e + ") is defined }}" for e in EXPRESSIONS[::7]] + STATEMENTS:
        r = plain(t, BASE)
        if usable(t, r):
            out.append(case(t, None, r))
    return out


UNSTABLE = re.compile(r" at 0x|<generator|<built-in|<bound|<function|<Macro|<class|<list_|<dict|<reversed|<jinja2|<transformers|<Loop|<filter|<map|lipsum|<itertools|<range_it|<str_|\d{19}|TemplateReference|self")


def usable(template, result):
    """Text with addresses, numbers beyond 64 bits and what we refuse on purpose is not compared."""
    text = result[0]
    if text is not None and (UNSTABLE.search(text) or len(text) > 4000):
        return False
    return not any(w in template for w in ("lipsum", "self", "9223372036854775807", "encode", "1e400"))


# ------------------------------------------------------------------------------------------------------------------ family templates

QWEN_VL = """{%- set images = namespace(n=0) -%}
{%- macro parts(content) -%}
{%- if content is string -%}{{ content }}{%- else -%}
{%- for item in content -%}
{%- if 'image' in item or item.type == 'image' -%}
{%- set images.n = images.n + 1 -%}
{%- if add_vision_id %}Picture {{ images.n }}: {% endif -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in item -%}{{ item.text }}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{ parts(messages[0].content) + '\\n\\n' }}{% endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{ "\\n" }}{{ tool | tojson }}{% endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + parts(messages[0].content) + '<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{ '<|im_start|>' + message.role + '\\n' + parts(message.content) + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>' + message.role + '\\n' + parts(message.content) }}
{%- for call in message.tool_calls -%}
{%- if (loop.first and message.content) or not loop.first %}{{ '\\n' }}{% endif -%}
{%- if call.function %}{%- set call = call.function %}{% endif -%}
{{ '<tool_call>\\n{"name": "' }}{{ call.name }}{{ '", "arguments": ' }}
{%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif -%}
{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + parts(message.content) + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""

QWEN2_VL = """{% set n = namespace(v=0) %}{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' or 'image' in part or 'image_url' in part %}{% set n.v = n.v + 1 %}{% if add_vision_id %}Picture {{ n.v }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

THINKING = """{%- set ns = namespace(last=messages|length - 1) %}
{%- for m in messages[::-1] %}{%- set i = (messages|length - 1) - loop.index0 %}
{%- if m.role == 'user' and m.content is string and not m.content.startswith('<tool_response>') and not ns.seen %}{%- set ns.last = i %}{%- set ns.seen = true %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- set reasoning = '' %}{%- set text = m.content %}
{%- if m.reasoning_content is string %}{%- set reasoning = m.reasoning_content %}
{%- elif '</think>' in text %}{%- set reasoning = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>assistant\\n' }}{% if loop.index0 > ns.last %}{{ '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}{{ text + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""

GEMMA4 = """{%- macro value(v) -%}
{%- if v is string %}{{ '<|"|>' + v + '<|"|>' }}{% elif v is boolean %}{{ 'true' if v else 'false' }}{% elif v is mapping -%}
{ {%- for k, w in v|dictsort %}{{ ',' if not loop.first }}{{ k }}:{{ value(w) }}{% endfor -%} }
{%- elif v is sequence -%}[{% for w in v %}{{ ',' if not loop.first }}{{ value(w) }}{% endfor %}]{%- else %}{{ v }}{% endif -%}
{%- endmacro -%}
{%- macro schema(props) -%}
{%- for name, p in props|dictsort %}{{ ',' if not loop.first }}{{ name }}:{
{%- set sep = namespace(on=false) -%}
{%- if p['description'] %}description:<|"|>{{ p['description'] }}<|"|>{% set sep.on = true %}{% endif -%}
{%- if p['enum'] %}{{ ',' if sep.on }}enum:{{ value(p['enum']) }}{% set sep.on = true %}{% endif -%}
{%- if p['properties'] %}{{ ',' if sep.on }}properties:{ {{- schema(p['properties']) -}} }{% set sep.on = true %}{% endif -%}
{{ ',' if sep.on }}type:<|"|>{{ p['type'] | upper }}<|"|>}
{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- set loop_messages = messages -%}
{%- if messages[0].role in ['system', 'developer'] or tools or enable_thinking -%}
<|turn>system
{% if enable_thinking %}{{ '<|think|>\\n' }}{% endif -%}
{%- if messages[0].role in ['system', 'developer'] %}{{ messages[0].content | trim if messages[0].content is string else messages[0].content[0].text | trim }}{% set loop_messages = messages[1:] %}{% endif -%}
{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{description:<|"|>{{ tool.function.description }}<|"|>,parameters:{properties:{ {{- schema(tool['function']['parameters']['properties']) -}} }
{%- if tool.function.parameters.required %},required:{{ value(tool.function.parameters.required) }}{% endif %},type:<|"|>OBJECT<|"|>}}<tool|>{% endfor -%}
<turn|>
{% endif -%}
{%- for m in loop_messages -%}
{%- set role = 'model' if m.role == 'assistant' else m.role -%}
{%- if role != 'tool' %}<|turn>{{ role }}
{% endif -%}
{%- for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{% if call.function.arguments is mapping %}{{ value(call.function.arguments) }}{% else %}{ {{- call.function.arguments -}} }{% endif %}<tool_call|>{% endfor -%}
{%- if role == 'tool' %}<|tool_response>response:{{ m.name or 'unknown' }}{value:{{ value(m.content) }}}<tool_response|>
{%- elif m.content is string %}{{ m.content | trim }}
{%- else -%}
{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text | trim }}{% elif part.type == 'image' %}<|image|>{% endif %}{% endfor -%}
{%- endif -%}
{%- if role != 'tool' and not m.tool_calls %}<turn|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model
{% if not enable_thinking %}{{ '<|channel>thought\\n<channel|>' }}{% endif %}{% endif -%}"""

QWEN25 = """{%- set has_system = messages[0].role == 'system' -%}
{{ '<|im_start|>system\\n' }}{{ messages[0].content if has_system else 'You answer questions.' }}
{%- if tools %}{{ '\\n\\n# Functions\\n\\nSignatures stand within <tools></tools>:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor -%}
{{ '\\n</tools>\\n\\nTo call one, write its name and arguments as JSON within <tool_call></tool_call>:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}{% endif -%}
{{ '<|im_end|>\\n' }}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) or (m.role == 'assistant' and not m.tool_calls) -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}
{%- elif m.role == 'assistant' -%}
{{ '<|im_start|>assistant' }}{% if m.content %}{{ '\\n' + m.content }}{% endif -%}
{%- for call in m.tool_calls %}{% set f = call.function if call.function is defined else call -%}
{{ '\\n<tool_call>\\n{"name": "' + f.name + '", "arguments": ' }}{{ f.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' }}{{ m.content }}{{ '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"""

# Reasoning is kept behind the last question of the user; tools as above. The hybrid one lets the request switch thinking off, the other one opens it.
QWEN3 = """{%- macro words(content) -%}
{%- if content is string %}{{ content }}{% else -%}
{%- for part in content %}{% if part.type == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{ words(messages[0].content) + '\\n\\n' }}{% endif -%}
{{ '# Functions\\n\\n<tools>' }}{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor -%}
{{ '\\n</tools>\\n\\nA call:\\n<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' -%}
{{ '<|im_start|>system\\n' + words(messages[0].content) + '<|im_end|>\\n' }}
{%- endif -%}
{%- set ns = namespace(searching=true, last=messages|length - 1) -%}
{%- for m in messages[::-1] %}{% set at = messages|length - 1 - loop.index0 -%}
{%- if ns.searching and m.role == 'user' and not (words(m.content).startswith('<tool_response>') and words(m.content).endswith('</tool_response>')) -%}
{%- set ns.searching = false %}{% set ns.last = at -%}
{%- endif %}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{ '<|im_start|>' + m.role + '\\n' + words(m.content) + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' -%}
{%- set text = words(m.content) %}{% set reasoning = '' -%}
{%- if m.reasoning_content is string %}{% set reasoning = m.reasoning_content -%}
{%- elif '</think>' in text %}{% set reasoning = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif -%}
{{ '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}{{ '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + text.lstrip('\\n') }}{% else %}{{ text }}{% endif -%}
{%- for call in m.tool_calls or [] -%}
{%- if not loop.first or text %}{{ '\\n' }}{% endif %}{% set f = call.function or call -%}
{{ '<tool_call>\\n{"name": "' + f.name + '", "arguments": ' }}{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\\n<tool_response>\\n' + words(m.content) + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}OPEN{% endif -%}"""
QWEN3_HYBRID = QWEN3.replace("OPEN", "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}")
QWEN3_THINKING = QWEN3.replace("OPEN", "{{ '<think>\\n' }}")

PLAIN_STRING = """{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{{ '[INST] ' + m['content'] + ' [/INST]' if m['role'] == 'user' else m['content'] + eos_token }}{% endfor %}"""

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Get weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string", "description": "City"}, "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["city"]}}}


def text(t):
    return {"type": "text", "text": t}


IMAGE = {"type": "image"}


def user(c):
    return {"role": "user", "content": c}


def assistant(c, **more):
    return {"role": "assistant", "content": c, **more}


def system(c):
    return {"role": "system", "content": c}


def call(name, args, i=0):
    return {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": args}}


CHATS = {
    "one image": [user([IMAGE, text("Describe é <b>.")])],
    "four turns": [system("Be brief."), user(" hi "), assistant("yo"), user([text(" a "), IMAGE, IMAGE, text(" b ")])],
    "string": [user("hello")],
    "white space": [user("  \n hello \t\u00a0"), assistant("\n ok \n"), user("")],
    "list system": [system([text("Rule one."), text("Rule two.")]), user([text("x")])],
    "lone system": [system("Be brief.")],
    "two users": [user("a"), user("b")],
    "assistant first": [assistant("a"), user("b")],
    "late system": [user("a"), system("s"), user("b")],
    "unicode": [user("Zürich 北京 😀 \u202e \u0000x \ud7ff"), assistant("ñ"), user("<|im_end|><start_of_turn>model\n{{ 7*7 }}{% raw %}")],
    "text only list": [user([text("a"), text(""), text(" b\n")]), assistant([text("c")]), user([])],
    "tool round": [user("weather?"), assistant("", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2}), call("get_weather", {"city": "Oslo"}, 1)]),
                   {"role": "tool", "tool_call_id": "call_0", "name": "get_weather", "content": "sunny"}, {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain"}],
    "tool round and on": [system("S"), user("weather?"), assistant("Let me see", tool_calls=[call("get_weather", {"city": "a\"b\\\n", "x": [1.0, None, True, {"y": 1e21}]})]),
                          {"role": "tool", "tool_call_id": "call_0", "name": "get_weather", "content": "{\"t\": 1}"}, assistant("It is."), user("thanks")],
    "string arguments": [user("q"), assistant("", tool_calls=[call("f", "{\"a\": 1}")]), {"role": "tool", "name": "f", "content": "r"}],
    "reasoning": [user("q"), assistant("a", reasoning_content="\nhm\n"), user("r"), assistant("<think>\nold\n</think>\n\nb"), user("s")],
    "reasoning tail": [user("q"), assistant("<think>\nnow\n</think>\n\nb")],
    "null content": [user("q"), {"role": "assistant", "content": None}, user("r")],
    "no content": [user("q"), {"role": "assistant"}, user("r")],
    "number content": [user(5)],
    "empty": [],
    "odd role": [{"role": "weird", "content": "x"}, assistant("y")],
    "developer": [{"role": "developer", "content": "Be brief."}, user("x")],
    "many": [m for k in range(30) for m in (user(f"q{k}"), assistant(f"a{k}"))] + [user([IMAGE, text("end")])],
    "video": [user([{"type": "video"}, text("x"), IMAGE])],
}


# ------------------------------------------------------------------------------------------------------------------ chats with tools


def function(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


def schema(**more):
    return {"type": "object", **more}


# What a client's JSON may hold, in its order: numbers of all forms, other scripts, characters that HTML or JSON would escape, unknown keys.
TOOL_SETS = {
    "one": [TOOL],
    "odd": [{"function": {"parameters": {"required": ["b", "a"], "properties": {"b": {"type": "number", "minimum": -0.0, "maximum": 1e2, "default": 1.5e-7, "multipleOf": 1e300},
             "a": {"type": "integer", "maximum": 9223372036854775807, "minimum": -9223372036854775808, "enum": [1, 1.0, 0, -3]}}, "type": "object", "additionalProperties": False},
             "strict": None, "name": "odd", "description": "Zürich 北京 😀 <b>&amp;'\"\\/\u2028\t\n\x7f"}, "type": "function", "x-key": [None, True, {}, [], ""]}],
    "bare": [function("a"), function("b", description=""), function("c", parameters=schema(properties={}))],
    "tags": [function("t", description="<tool_call>\n{}</tool_call><|im_end|></tools>", parameters=schema(properties={"<think>": {"type": "string", "description": "{{ 7 * 7 }}"}}))],
    "deep": [function("d", parameters=schema(properties={"p": schema(properties={"q": {"type": "array", "items": {"anyOf": [{"type": "null"}, schema(properties={"r": {"$ref": "#/x"}})]}}}),
                                                         "e": {"enum": ["c", "f", None, 5, 2.50, "ü"]}}))],
    "many": [function(f"f{k}", description=f"number {k}", parameters=schema(properties={f"p{j}": {"type": "string"} for j in range(k % 4)})) for k in range(9)],
}


def said(content=None, *calls, **more):
    """An assistant's message as the API has it: arguments are JSON text."""
    m = {"role": "assistant", "content": content, **more}
    if calls:
        m["tool_calls"] = [call(name, args, i) for i, (name, args) in enumerate(calls)]
    return m


def result(content, i=0):
    return {"role": "tool", "tool_call_id": f"call_{i}", "content": content}


TOOL_CHATS = {
    "question": [user("Weather?")],
    "system": [system("Be brief."), user("Weather in Zürich?")],
    "typed tags": [user("What is <tool_call>\n{\"name\": \"f\"}\n</tool_call> and <think>?")],
    "call": [user("q"), said(None, ("get_weather", '{"city": "Zürich", "days": 2}'))],
    "text and call": [user("q"), said("Let me see.", ("get_weather", '{"city":"Oslo"}'))],
    "two calls": [user("q"), said(None, ("a", '{"x": 1.0, "y": [1e2, -0.0, null, true], "z": {"ü": "}\\"{"}}'), ("b", "{}")), result("r1"), result("r2", 1)],
    "empty arguments": [user("q"), said("", ("a", "")), result("")],
    "result in parts": [user("q"), said(None, ("a", "{}")), result([text("one"), text("two <tool_response>")])],
    "rounds": [system("S"), user("q"), said("One.", ("a", '{"b": "\\u00e9\\n"}')), result("r"), said("Two.", ("a", "{}")), result("s"), said("Done."), user("more"), said(None, ("a", "{}"))],
    "reasoned call": [user("q"), said(None, ("a", "{}"), reasoning_content="\nhm\n"), result("r")],
    "reasoned rounds": [user("q"), said("x", ("a", "{}"), reasoning_content="first"), result("r"), said("y", reasoning="second"), user("p"), said("z", ("b", "{}"), reasoning_content="third"), result("r")],
    "reasoning inside": [user("q"), said("<think>\nhm\n</think>\n\nanswer", ("a", "{}")), result("r")],
    "wrapped result": [user("q"), said("x", reasoning_content="one"), user("<tool_response>\nr\n</tool_response>"), said("y", reasoning_content="two")],
}


def for_template(messages):
    """The same chat as transformers wants it: arguments as objects, no null content, texts of a result joined."""
    out = []
    for m in messages:
        m = json.loads(json.dumps(m))
        m["content"] = m["content"] if m["content"] is not None else ""
        if m["role"] == "tool" and isinstance(m["content"], list):
            m["content"] = "\n".join(p["text"] for p in m["content"])
        if "reasoning" in m:
            m["reasoning_content"] = m.pop("reasoning")
        for c in m.get("tool_calls", []):
            c["function"]["arguments"] = json.loads(c["function"]["arguments"] or "{}")
        out.append(m)
    return out


def tool_cases(names):
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    out = []
    for name in ("qwen2.5", "qwen3-vl", "qwen3", "qwen3-thinking", "qwen3.5", "gemma4"):
        for label, messages in TOOL_CHATS.items():
            sets = list(TOOL_SETS) if label in ("question", "system") and name != "gemma4" else ["one", None]
            for tools in sets:
                for thinking in (None, False, True) if name in ("qwen3", "qwen3.5") else (None,):
                    kw = {"add_generation_prompt": messages[-1]["role"] != "assistant", "tools": TOOL_SETS.get(tools)}
                    if thinking is not None:
                        kw["enable_thinking"] = thinking
                    out.append(case(name, {"messages": messages, **kw, **special}, chat(names[name], for_template(messages), **kw, **special)))
    return out


def families():
    names = {"gemma3": GEMMA3, "qwen3-vl": QWEN_VL, "qwen2-vl": QWEN2_VL, "thinking": THINKING, "gemma4": GEMMA4, "plain": PLAIN_STRING, "qwen2.5": QWEN25,
             "qwen3": QWEN3_HYBRID, "qwen3-thinking": QWEN3_THINKING, "qwen3.5": QWEN35}
    special = {"bos_token": "<bos>", "eos_token": "<eos>"}
    out, cont = [], []
    for name, template in names.items():
        if name in ("qwen3", "qwen3-thinking", "qwen3.5"):  # of tool_cases
            continue
        for messages in CHATS.values():
            for kwargs in ({"add_generation_prompt": True}, {"add_generation_prompt": False}, {"add_generation_prompt": True, "tools": [TOOL]},
                           {"add_generation_prompt": True, "enable_thinking": True, "add_vision_id": True}, {"add_generation_prompt": True, "enable_thinking": False}):
                kw = {"tools": None, **kwargs}
                r = chat(template, messages, **kw, **special)
                v = {"messages": alias(messages), "documents": None, **kw, **special}
                out.append(case(name, v, r))
        for tail in ("The answer is ", "The answer is", " \n x \n\n", "", "<think>\nabc", "dup CONTINUE_FINAL_MESSAGE_TAG x"):
            for content in (tail, [text("first"), text(tail)], [text(tail), IMAGE], [IMAGE]):
                messages = [user("q"), assistant(content)]
                r = chat(template, messages, add_generation_prompt=False, continue_final_message=True, **special)
                cont.append(case(name, {"messages": messages, **special}, r))
    return names, out, cont


def alias(messages):
    return ctu._alias_reasoning_fields(ctu._plain_template_data(messages))


# ------------------------------------------------------------------------------------------------------------------ random templates

WORDS = ["a", "b c", "", "héy ☃", "  pad ", "<start_of_turn>", "x,y,,z", "Ab-Cd", "line\nline2", "12", "3.5", "'q'", '"dq"', "😀", "None", "\t", "aXbXc"]
UNARY_FILTERS = ["upper", "lower", "trim", "length", "string", "list", "first", "last", "tojson", "title", "capitalize", "int", "sort", "unique|list",
                 "reverse|list", "join", "join(', ')", "join('-')", "min", "max", "default('D')", "default('D', true)", "items|list", "dictsort", "count", "e", "safe",
                 "replace('a', 'ZZ')", "replace('', '.', 2)", "indent(2)", "indent(2, true)", "tojson(indent=2)", "tojson(ensure_ascii=true)",
                 "map('upper')|list", "map('string')|list", "select|list", "reject|list", "select('string')|list", "select('defined')|list", "int(7)",
                 "trim('ax')", "sort(reverse=true)", "map(attribute='k')|list", "map(attribute=0)|list", "map(attribute='k', default=0)|list", "selectattr('k')|list", "rejectattr('k', 'none')|list", "first|default('E')", "format(1)", "map('length')|list", "sort(case_sensitive=true)"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true", "false", "odd", "even",
         "divisibleby(2)", "eq(1)", "in([1, 'a'])", "gt(1)", "callable", "ne('a')"]
METHODS = ["upper()", "lower()", "strip()", "lstrip()", "rstrip('a ')", "split()", "split(',')", "split('X', 1)", "rsplit(',', 1)", "title()", "startswith('a')", "endswith(('c', 'z'))", "find('b')", "replace('a', 'b')", "join(['1', '2'])",
           "items()|list", "keys()|list", "values()|list", "get('k')", "get('q', 5)", "splitlines()", "isdigit()", "partition('b')", "capitalize()", "removeprefix('a')", "format(1, 2)", "isalpha()", "append(1)", "nope()"]


class Generator:
    # `set` only makes names that are no variables of the request: where an inner scope reads a name that the outer scope sets later on,
    # the reference hides the request's variable from it; ours does not.
    def __init__(self, seed):
        self.r = random.Random(seed)

    def value(self, depth=0):
        r = self.r
        k = r.randrange(10 if depth < 2 else 6)
        if k == 0:
            return r.choice([0, 1, 2, -3, 7, 100, 2**40])
        if k == 1:
            return r.choice([0.0, 1.5, -2.25, 1e20, 3.0, 0.1])
        if k == 2:
            return r.choice([True, False, None])
        if k <= 5:
            return r.choice(WORDS)
        if k <= 7:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        return {r.choice(["k", "a", "B", "items", "é"]): self.value(depth + 1) for _ in range(r.randrange(4))}

    def literal(self):
        r = self.r
        return r.choice(["1", "0", "-2", "2.5", "true", "none", "'a'", "'Ab c'", "[]", "[1, 'b', none]", "{'k': 1}", "(1, 2)", "''", "'é☃'", "range(3)", "'a,b'", "'%s|'", "'{}'", "[[1, 2], ['a', 3]]", "[{'k': 'x'}, {'k': 2}, {}]"])

    def name(self):
        return self.r.choice(["v0", "v1", "v2", "v3", "und", "loop.index", "t", "w0", "w1"])

    def expr(self, depth=0):
        r = self.r
        if depth > 3:
            return r.choice([self.literal, self.name])()
        e = lambda: self.expr(depth + 1)
        k = r.randrange(22)
        if k < 3:
            return self.literal()
        if k < 7:
            return self.name()
        if k == 7:
            return f"{e()} {r.choice(['+', '-', '*', '~', '~', '/', '//', '%', '+'])} {e()}"
        if k == 8:
            return f"{e()} {r.choice(['==', '!=', '<', '>=', 'in', 'not in', '>'])} {e()}"
        if k == 9:
            return f"{e()} {r.choice(['and', 'or'])} {e()}"
        if k == 10:
            return f"not {e()}"
        if k == 11:
            return f"({e()})"
        if k in (12, 13, 14):
            return f"{e()}|{r.choice(UNARY_FILTERS)}"
        if k == 15:
            return f"{e()} is {r.choice(['', 'not '])}{r.choice(TESTS)}"
        if k in (16, 17):
            return f"({e()}).{r.choice(METHODS)}"
        if k == 18:
            if r.random() < 0.5:  # of names only: slices of a constant that can't be sliced are folded to undefined by the reference's optimizer
                return f"{r.choice(['v0', 'v1', 'v2', 'v3', 'w0'])}{r.choice(['[1:]', '[::-1]', '[:-1]', '[:2]', '[-3:2]', '[::2]', '[2:0:-1]'])}"
            return f"({e()}){r.choice(['[0]', '[-1]', '.k', '[' + e() + ']', '.0', '.items'])}"
        if k == 19:
            return f"{e()} if {e()}" + (f" else {e()}" if r.random() < 0.8 else "")
        if k == 20:
            return f"[{e()}, {e()}]"
        return f"-{e()}"

    def space(self, tag):
        r = self.r
        left, right = r.choice(["", "", "", "-", "+"]), r.choice(["", "", "", "-"])
        return f"{tag[:2]}{left} {tag[2:-2].strip()} {right}{tag[-2:]}"

    def block(self, depth=0):
        return "".join(self.statement(depth) for _ in range(self.r.randrange(1, 4)))

    def statement(self, depth):
        r = self.r
        s = self.space
        data = lambda: r.choice(["", "x", " ", "\n", "  \n", "\n  ", "a b", "é\n\n", "<t>", "\t"])
        k = r.randrange(14) if depth < 3 else r.randrange(6)
        if k < 2:
            return data()
        if k < 6:
            return data() + s("{{ " + self.expr() + " }}") + data()
        if k == 6:
            return data() + s("{% if " + self.expr() + " %}") + self.block(depth + 1) + (s("{% else %}") + self.block(depth + 1) if r.random() < 0.5 else "") + s("{% endif %}")
        if k in (7, 8):
            cond = f" if {self.expr(2)}" if r.random() < 0.25 else ""
            tail = s("{% else %}") + self.block(depth + 1) if r.random() < 0.3 else ""
            flow = r.choice(["", "", "", "{% if loop.first %}{% continue %}{% endif %}", "{% if loop.index > 1 %}{% break %}{% endif %}", "{{ loop.last }}{{ loop.previtem }}"])
            return s("{% for t in " + self.expr(1) + cond + " %}") + flow + self.block(depth + 1) + tail + s("{% endfor %}")
        if k == 9:
            return s("{% set " + r.choice(["w0", "w1", "w2"]) + " = " + self.expr() + " %}") + data()
        if k == 10:
            return s("{% set w1 %}") + self.block(depth + 1) + s("{% endset %}")
        if k == 11:
            return s("{% macro mm(v0, t=3) %}") + self.block(depth + 1) + s("{% endmacro %}") + "{{ mm(" + self.expr(2) + ") }}" + r.choice(["", "{{ mm(t=1) }}", "{{ mm() + '!' }}"])
        if k == 12:
            return s("{% filter " + r.choice(["upper", "trim", "replace('a', 'b')", "indent(1)", "length"]) + " %}") + self.block(depth + 1) + s("{% endfilter %}")
        return s("{% set ns = namespace(q=" + self.expr(2) + ") %}") + "{% for z in [1, 2] %}" + s("{% set ns.q = " + r.choice(["[ns.q, z]", "ns.q ~ z", "z", self.expr(2)]) + " %}") + "{% endfor %}{{ ns.q }}"


def randoms(seed, count, keep_errors=0.25):
    g, out, errors = Generator(seed), [], 0
    while len(out) < count:
        t = g.block()
        v = {f"v{k}": g.value() for k in range(4)}
        r = plain(t, v)
        if not usable(t, r) or len(t) > 700:
            continue
        if r[0] is None:
            if errors > keep_errors * count:
                continue
            errors += 1
        out.append(case(t, v, r))
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--count", type=int, default=1500)
    a.add_argument("--seed", type=int, default=20250726)
    a.add_argument("--out", default=str(HERE.parent.parent / "tests/golden/templates/cases.json"))
    o = a.parse_args()
    names, chats, cont = families()
    groups = {"templates": names, "base": BASE, "tables": tables(), "chats": chats, "continue": cont, "tools": tool_cases(names), "random": randoms(o.seed, o.count)}
    made = f"make_templates.py --seed {o.seed} --count {o.count}; transformers {transformers.__version__}, Jinja2 {jinja2.__version__}; clock {NOW.isoformat()}"
    with open(o.out, "w") as f:
        f.write('{"made_by": ' + json.dumps(made))
        for k, g in groups.items():
            f.write(",\n" + json.dumps(k) + ": ")
            if isinstance(g, list):
                f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in g) + "\n]")
            else:
                f.write(json.dumps(g, ensure_ascii=False))
        f.write("\n}\n")
    print({k: len(g) for k, g in groups.items()}, Path(o.out).stat().st_size)


if __name__ == "__main__":
    main()
