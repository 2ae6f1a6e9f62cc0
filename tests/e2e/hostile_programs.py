"""Programs that try to hang, flood, fill or leave the sandbox, by what each tries."""

from __future__ import annotations

# How a program finds the function by which the runner reports outcomes: it is not given it.
_FIND_REPORT = """
import sys
frame = sys._getframe()
while "report" not in frame.f_locals:
    frame = frame.f_back
report = frame.f_locals["report"]
"""
_OUTCOME = (
    '{"type": "test", "name": "x", "outcome": "passed", "message": "%s", "traceback": "", "file": "",'
    ' "line": 0, "ms": 1}'
)
# How a program looks for an object of JavaScript, and through it for a function made of text.
_FIND_JAVASCRIPT = """
import gc
for it in gc.get_objects():
    if type(it).__name__.startswith("JsProxy"):
        it.constructor.constructor(%r)()
raise SystemExit("nothing of JavaScript was found")
"""

SHORT = {
    "never ends, and swallows every exception": """
while True:
    try:
        while True: pass
    except BaseException: pass
""",
    "prints without end": "while True: print('x' * 10_000)",
    "takes memory without end": "held = []\nwhile True: held.append(bytearray(10**7))",
    "fills the file system": "f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(10**6)); f.flush()",
    "reports outcomes without end": f"{_FIND_REPORT}\nwhile True: report({_OUTCOME % 'x'!r})",
    "prints markup that would fetch": (
        'print(\'<img src="http://192.0.2.1/x"><script src="//192.0.2.1/y"></script>\')\n'
        "raise ValueError('<iframe src=\"http://192.0.2.1/z\"></iframe>')"
    ),
}
"""One of each kind, for every change."""

FULL = {
    **SHORT,
    "calls itself without end": "def f(n): return f(n + 1) + 1\nf(0)",
    "one operation that takes for ever": "10 ** 10 ** 9",
    "a pattern that takes for ever": "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')",
    "sleeps for a year": "import time\ntime.sleep(3e7)",
    "a text that cannot be said": """
class E(Exception):
    def __str__(self):
        while True: pass
raise E
""",
    "goes on as it is taken down": """
class D:
    def __del__(self):
        while True: pass
d = D()
del d
""",
    "prints a byte at a time": "import sys\nwhile True: sys.stdout.write('x'); sys.stdout.flush()",
    "prints errors without end": "import sys\nwhile True: print('x' * 1000, file=sys.stderr)",
    "writes to the descriptor without end": "import os\nwhile True: os.write(1, b'x' * 4096)",
    "doubles a text": "s = 'x'\nwhile True: s += s",
    "doubles a list": "s = [0]\nwhile True: s += s",
    "inflates a bomb": """
import zlib
bomb, held = zlib.compress(bytes(10**7)), []
while True: held.append(zlib.decompress(bomb))
""",
    "makes a file of a terabyte": "f = open('/tmp/x', 'wb')\nf.truncate(10**12)",
    "writes behind a gap of a terabyte": "f = open('/tmp/x', 'wb')\nf.seek(10**12)\nf.write(b'x')\nf.flush()",
    "makes files without end": "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{n}', 'w').close()",
    "reports one outcome of 50 MB": f"{_FIND_REPORT}\nreport({_OUTCOME!r} % ('x' * 50_000_000))",
    "reports what is no outcome": f"{_FIND_REPORT}\nfor said in ('null', '[]', '{{}}', 'x'): report(said)",
    "has ten thousand tests": "for n in range(10_000): exec(f'def test_{n}(): pass')",
    "fails with a megabyte of text": "raise ValueError('x' * 10**6)",
    "starts threads without end": "import threading\nwhile True: threading.Thread(target=print).start()",
    "forks": "import os\nwhile True: os.fork()",
    "starts a program": "import subprocess\nsubprocess.run(['sh', '-c', 'id'])",
    "ends the interpreter": "import os\nos._exit(1)",
    "kills itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "breaks the interpreter's memory": "import ctypes\nctypes.string_at(1 << 40, 10)",
    "runs JavaScript": "from pyodide.code import run_js\nrun_js('fetch(\"http://192.0.2.1\")')",
    "finds JavaScript and fetches": _FIND_JAVASCRIPT % "fetch('http://192.0.2.1/')",
    "finds JavaScript and floods": _FIND_JAVASCRIPT % "for (;;) postMessage({type: 'outcome'})",
    "opens sockets": "import socket\nsocket.create_connection(('192.0.2.1', 80), 1)",
    "asks for a page": "import urllib.request\nurllib.request.urlopen('http://192.0.2.1/')",
    "asks by the interpreter's own way": "from pyodide.http import open_url\nopen_url('http://192.0.2.1/')",
    "looks for the page": "import js\njs.parent.document.body.innerHTML = ''",
    "takes the standard library down": (
        "import sys, builtins\nsys.modules.clear()\nbuiltins.__dict__.clear()\nwhile True: pass"
    ),
    "never lets its tasks end": """
import asyncio
async def f():
    while True:
        asyncio.ensure_future(f())
        await asyncio.sleep(0)
asyncio.run(f())
""",
}
