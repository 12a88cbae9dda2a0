#!/usr/bin/env python3
"""Holds files, functions, classes and parameters to the sizes below. Needs what requirements.txt names; run.sh gets it.

    sizes.py [ROOT]        check ROOT; the repository unless given
    sizes.py --list        print what breaks a rule today, in the form of size_exceptions.txt
    sizes.py --self-test   plant each kind of violation in a temporary tree and see that it is found

No file over 400 lines, no function over 80, no class over 20 data members, no parameter of type bool in a public header.
What may be so all the same stands in size_exceptions.txt, each with a reason; a line there that is not needed any more is
an error too. Exits with 1 and one line per violation.
"""

import ast
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import tree_sitter
import tree_sitter_cpp

FILE_LINES, FUNCTION_LINES, CLASS_MEMBERS = 400, 80, 20
FOLDERS = ["benchmarks", "examples", "python", "scripts", "snug", "tests"]
CPP, PYTHON, OTHERS = {".h", ".cpp"}, {".py"}, {".sh", ".cmake"}
EXCEPTIONS = "tests/architecture/size_exceptions.txt"
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


class Finding(NamedTuple):
    """What breaks a rule: "bool snug/a.h f(x)" is its key in the list of exceptions."""

    rule: str
    path: str
    name: str
    line: int
    text: str

    def key(self):
        return " ".join(filter(None, [self.rule, self.path, self.name]))


def is_public_header(path):
    """As cmake --install has it."""
    return path.startswith("snug/") and path.endswith(".h") and not path.startswith("snug/cli/")


def text_of(node):
    return node.text.decode()


def lines_of(node):
    return node.end_point.row - node.start_point.row + 1


def first_line(node):
    return node.start_point.row + 1


def function_declarator(node):
    """The function that this declares, through pointers and references that it returns, or None."""
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator") or next(
            (c for c in node.named_children if c.type.endswith("_declarator")), None)
    return node


def function_name(declarator):
    name = text_of(declarator.child_by_field_name("declarator"))
    arguments = declarator.child_by_field_name("parameters")
    # TEST(Suite, Name), which reads as a function without a type.
    if name in ("TEST", "TEST_F", "TEST_P"):
        return name + "".join(text_of(arguments).split())
    return "".join(name.split())


def data_members(body):
    count = 0
    for field in body.named_children:
        if field.type != "field_declaration" or any(text_of(c) == "static" for c in field.children):
            continue
        names = field.children_by_field_name("declarator")
        count += sum(1 for name in names if function_declarator(name) is None)
    return count


def bool_parameters(declarator):
    for parameter in declarator.child_by_field_name("parameters").named_children:
        kind = parameter.child_by_field_name("type")
        name = parameter.child_by_field_name("declarator")
        if kind is not None and text_of(kind) == "bool" and (name is None or name.type == "identifier"):
            yield text_of(name) if name is not None else ""


def of_class(node, path, scope):
    name = node.child_by_field_name("name")
    name = "::".join(filter(None, [scope, text_of(name) if name is not None else "unnamed"]))
    body = node.child_by_field_name("body")
    members = data_members(body)
    if members > CLASS_MEMBERS:
        yield Finding("members", path, name, first_line(node), f"has {members} data members; {CLASS_MEMBERS} at most")
    public = node.type != "class_specifier"
    for child in body.children:
        if child.type == "access_specifier":
            public = text_of(child).rstrip(":").strip() == "public"
        yield from of_cpp(child, path, name, public)


def of_cpp(node, path, scope="", public=True):
    """Findings in a part of a C++ file, within the class `scope`."""
    if node.type in ("class_specifier", "struct_specifier") and node.child_by_field_name("body") is not None:
        yield from of_class(node, path, scope)
        return
    if node.type == "function_declarator":
        if public and is_public_header(path):
            for parameter in bool_parameters(node):
                name = "::".join(filter(None, [scope, function_name(node)]))
                yield Finding("bool", path, f"{name}({parameter})", first_line(node),
                              "is a bool parameter of a public header: name the alternatives")
        return
    if node.type == "function_definition" and lines_of(node) > FUNCTION_LINES:
        declarator = function_declarator(node.child_by_field_name("declarator"))
        name = function_name(declarator) if declarator is not None else "unnamed"
        name = "::".join(filter(None, [scope, name]))
        yield Finding("function", path, name, first_line(node), f"has {lines_of(node)} lines; {FUNCTION_LINES} at most")
    for child in node.named_children:
        if node.type != "function_definition" or child.type != "compound_statement":
            yield from of_cpp(child, path, scope, public)


def of_python(text, path):
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield Finding("function", path, node.name, node.lineno, f"has {lines} lines; {FUNCTION_LINES} at most")


def of_file(root, file):
    path = file.relative_to(root).as_posix()
    text = file.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield Finding("file", path, "", lines, f"has {lines} lines; {FILE_LINES} at most")
    if file.suffix in CPP:
        yield from of_cpp(PARSER.parse(text.encode()).root_node, path)
    elif file.suffix in PYTHON:
        yield from of_python(text, path)


def findings(root):
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and file.suffix in CPP | PYTHON | OTHERS:
                yield from of_file(root, file)


def exceptions(root):
    """(line number, key, reason) of each line "RULE PATH [NAME]: REASON"."""
    file = root / EXCEPTIONS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for number, line in enumerate(lines, 1):
        if line and not line.startswith("#"):
            key, _, reason = line.partition(": ")
            yield number, key, reason.strip()


def check(root):
    root = Path(root)
    found = list(findings(root))
    keys = {f.key() for f in found}
    allowed = list(exceptions(root))
    errors = [f"{f.path}:{f.line}: {f.name + ' ' if f.name else ''}{f.text}"
              for f in found if f.key() not in {key for _, key, _ in allowed}]
    for number, key, reason in allowed:
        if not reason:
            errors.append(f"{EXCEPTIONS}:{number}: {key} has no reason: write RULE PATH [NAME]: REASON")
        if key not in keys:
            errors.append(f"{EXCEPTIONS}:{number}: {key} is not needed any more: remove the line")
    order = [key for _, key, _ in allowed]
    if order != sorted(set(order)):
        errors.append(f"{EXCEPTIONS}: is not sorted, or has a line twice")
    return errors


LONG = "  f();\n" * 79
MEMBERS = "".join(f"  int m{i} = 0;\n" for i in range(20))
# (file, text, exceptions, what the one error says; None: no error)
SELF_TESTS = [
    ("snug/plan/a.cpp", "\n" * 400, "", None),
    ("snug/plan/a.cpp", "\n" * 401, "", "snug/plan/a.cpp:401: has 401 lines"),
    ("scripts/a.sh", "\n" * 401, "", "has 401 lines"),
    ("snug/plan/a.cpp", "\n" * 401, "file snug/plan/a.cpp: it is a table\n", None),
    ("snug/plan/a.cpp", "\n" * 401, "file snug/plan/a.cpp:\n", "1: file snug/plan/a.cpp: is not needed"),
    ("snug/plan/a.cpp", "\n" * 401, "file snug/plan/a.cpp: \n", "has no reason"),
    ("snug/plan/a.cpp", "\n" * 400, "file snug/plan/a.cpp: it is a table\n", "is not needed any more"),
    ("snug/plan/a.cpp", "void A::run() {\n" + LONG + "}\n", "", "snug/plan/a.cpp:1: A::run has 81 lines"),
    ("snug/plan/a.cpp", "void A::run() {\n" + LONG[7:] + "}\n", "", None),
    ("snug/plan/a.cpp", "const int& run() {\n" + LONG + "}\n", "function snug/plan/a.cpp run: it is a table\n", None),
    ("tests/a_test.cpp", "TEST(A, Runs) {\n" + LONG + "}\n", "", "TEST(A,Runs) has 81 lines"),
    ("python/a.py", "def run():\n" + "    f()\n" * 80, "", "run has 81 lines"),
    ("snug/plan/a.h", "namespace b {\nclass A {\n" + MEMBERS + "  int f(int x) const;\n  static int s;\n};\n}\n", "", None),
    ("snug/plan/a.h", "namespace b {\nclass A {\n" + MEMBERS + "  std::vector<int> v;\n};\n}\n", "", "A has 21 data members"),
    ("snug/plan/a.h", "struct A {\n" + MEMBERS + "  struct B { int x, y; };\n};\n", "", None),
    ("snug/plan/a.h", "struct A {\n" + MEMBERS + "  struct B { int x, y; } b;\n};\n", "", "A has 21 data members"),
    ("snug/plan/a.h", "void run(int x, const bool fast = false);\n", "", "snug/plan/a.h:1: run(fast) is a bool"),
    ("snug/plan/a.h", "class A {\n public:\n  explicit A(bool fast);\n};\n", "", "A::A(fast) is a bool"),
    ("snug/plan/a.h", "class A {\n  void run(bool fast);\n};\n", "", None),
    ("snug/plan/a.h", "struct A {\n  bool run(bool& fast) const { return [](bool y) { return y; }(fast); }\n};\n", "", None),
    ("snug/plan/a.h", "void each(std::function<void(bool)> f);\n", "", None),
    ("snug/plan/a.cpp", "void run(bool fast) {}\n", "", None),
    ("snug/cli/a.h", "void run(bool fast);\n", "", None),
    ("snug/plan/a.h", "int f(bool y, bool x);\n",
     "bool snug/plan/a.h f(y): as LibTorch has it\nbool snug/plan/a.h f(x): as LibTorch has it\n", "is not sorted"),
]


def self_test():
    failures = []
    for name, text, allowed, expected in SELF_TESTS:
        with tempfile.TemporaryDirectory() as folder:
            for path, content in ((name, text), (EXCEPTIONS, allowed)):
                (Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / path).write_text(content, encoding="utf-8")
            errors = check(folder)
        if not (not errors if expected is None else any(expected in error for error in errors)):
            failures.append(f"self-test: {name} with {text[:60]!r}: expected {expected!r}, got {errors}")
    return failures


def main(arguments):
    repository = Path(__file__).resolve().parents[2]
    if arguments == ["--self-test"]:
        errors = self_test()
    elif arguments == ["--list"]:
        reasons = {key: reason for _, key, reason in exceptions(repository)}
        keys = sorted({f.key() for f in findings(repository)})
        print("\n".join(f"{key}: {reasons.get(key, '')}" for key in keys))
        errors = []
    elif len(arguments) <= 1 and not any(a.startswith("-") for a in arguments):
        errors = check(arguments[0] if arguments else repository)
    else:
        errors = [__doc__.strip()]
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
