# SPDX-License-Identifier: LGPL-2.1-only
"""What strangers write is a value, or a ValueError: nothing else comes out of the one reader, and soon."""

import json
import time
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.examples import examples
from relvmoiscsi import untrusted, untrusted_xml

#: texts that Python's own readers take, or do not refuse with a ValueError, on some of its releases
HOSTILE = {
    "no text": "",
    "deep": "[" * 200000,
    "deep and closed": "[" * 1200 + "]" * 1200,
    "deep behind a string that looks like brackets": '["]]]]]]", ' + "[" * 30 + "]" * 31,
    "deep behind an escaped quote": '["\\"", ' + "[" * 30 + "]" * 31,
    "a long number": '{"a": ' + "9" * 5000 + "}",
    "21 digits": "[111111111111111111111]",
    "a negative long number": "[-" + "9" * 5000 + "]",
    "not a number": '{"a": NaN}',
    "an infinite number": "[1e999]",
    "half a surrogate pair": '{"a": "\\ud800"}',
    "half a surrogate pair as a name": '{"\\udfff": 1}',
    "one name twice": '{"a": 1, "a": 2}',
    "many values": "[" + "0," * untrusted.MOST_VALUES + "0]",
    "many empty lists": "[" + "[]," * untrusted.MOST_VALUES + "[]]",
    "long": '"' + "x" * (untrusted.MOST_BYTES + 1) + '"',
    "no UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_a_value_error_and_soon(name):
    with pytest.raises(ValueError):
        untrusted.json_of(HOSTILE[name])


@pytest.mark.parametrize("text", ["²", "٣", "", "-1", "+1", " 1", "1 ", "1_0", "0x1", "1\n", "1" * 19, "9" * 5000])
def test_what_is_no_number_of_ascii_digits_is_refused(text):
    assert not untrusted.is_number(text)
    with pytest.raises(ValueError):
        untrusted.number(text)


def test_what_relvmoiscsi_writes_is_read():
    facts = {"a": [1, -2, 0.25, True, None, 'Datenbank \N{SNOWMAN} \\ " [[[['], "b": {"c": {}}, "d": 10**18 - 1}
    for text in (json.dumps(facts), json.dumps(facts, ensure_ascii=False), json.dumps(facts).encode()):
        assert untrusted.object_of(text) == facts
    assert untrusted.number("000000000000000007") == 7


@pytest.mark.parametrize("text", ["2026-11-22T12:00:00Z", "20261122T12:00:00Z", "20261122T120000Z"])
def test_a_time_of_xapi_or_relvmoiscsi_is_read(text):
    assert untrusted.utc_seconds(text) == 1795348800


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-11-22", "2026-11-22T12:00:00Z, whose seal is right", "2026-11-22T12:00:00Z\n", "2026-13-22T12:00:00Z",
        "2026-1122T12:00:00Z", "-" * 100000 + "20261122T12:00:00Z", "٢٠٢٦-11-22T12:00:00Z", "0000-11-22T12:00:00Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused_in_a_few_words(text):
    with pytest.raises(ValueError) as refusal:
        untrusted.utc_seconds(text)
    assert len(str(refusal.value)) < 200


def test_deep_and_many_values_within_the_limits_are_read():
    deep = "[" * untrusted.DEEPEST + "]" * untrusted.DEEPEST
    assert json.dumps(untrusted.json_of(deep)) == deep
    many = [0] * (untrusted.MOST_VALUES - 1)
    assert untrusted.json_of(json.dumps(many)) == many


@pytest.mark.parametrize("text", ["[]", "7", '"x"', "null"])
def test_only_an_object_has_members(text):
    with pytest.raises(ValueError, match="no JSON object"):
        untrusted.object_of(text)


@pytest.mark.parametrize("value", [None, "x", ["x", 1], {"x": 1}])
def test_a_list_of_texts_has_texts_only(value):
    with pytest.raises(ValueError):
        untrusted.texts_of(value)


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, [1]])
def test_a_size_is_a_whole_number_from_0_on(value):
    assert untrusted.size_of(0) == 0
    with pytest.raises(ValueError):
        untrusted.size_of(value)


ENTITIES = "<?xml version='1.0' encoding='{}'?><!DOCTYPE a [<!ENTITY b 'bbbb'>]><a>&b;</a>"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-7"])
def test_no_encoding_hides_a_declaration(encoding):
    """Where the bytes are searched and the parser decodes them, `<!` in UTF-16 is never found."""
    with pytest.raises(ValueError):
        untrusted_xml.xml_of(ENTITIES.format(encoding).encode(encoding))
    with pytest.raises(ValueError):
        untrusted_xml.xml_of(ENTITIES.format(encoding))


@pytest.mark.parametrize("document", [b"\xff\xfe", b"", b"<a>", b"<a>\xe4</a>", "<a/>\0", b"<a>&b;</a>"])
def test_what_is_no_xml_is_a_value_error(document):
    with pytest.raises(ValueError):
        untrusted_xml.xml_of(document)


@pytest.mark.parametrize("char", ["\x01", "\ud800", "\ufffe", "\uffff"])
def test_a_character_that_xml_forbids_is_read_as_a_question_mark(char):
    """xapi stores U+FFFF in a value, and writes it into an export."""
    assert untrusted_xml.xml_of(f"<a>b{char}c</a>").text == "b?c"
    with pytest.raises(ValueError):
        untrusted_xml.xml_of(f"<a><{char}b</a>")


def test_an_xml_with_millions_of_elements_is_refused_before_it_takes_memory():
    before = time.process_time()
    with pytest.raises(ValueError, match="tags"):
        untrusted_xml.xml_of("<a>" + "<b/>" * untrusted_xml.MOST_TAGS + "</a>")
    assert time.process_time() - before < 1


def test_the_parser_takes_the_text_that_was_searched():
    """Whatever encoding the document says that it has."""
    document = "<?xml version='1.0' encoding='utf-16'?><a>\N{SNOWMAN}</a>"
    assert untrusted_xml.xml_of(document.encode("utf-8")).text == untrusted_xml.xml_of(document).text == "\N{SNOWMAN}"


# --- anything

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
    max_leaves=20,
)


@settings(max_examples=examples(1000), deadline=None)
@given(st.text() | st.binary() | st.text('[]{}",:\\u0d89e²') | JSON.map(json.dumps))
def test_any_text_is_a_value_or_a_value_error(text):
    try:
        found = untrusted.json_of(text)
    except ValueError:
        return
    assert json.loads(json.dumps(found)) == json.loads(text)
    json.dumps(found, ensure_ascii=False).encode("utf-8")


@settings(max_examples=examples(500), deadline=None)
@given(st.text("<>!/&;ab\"'= \0\ud800ä") | st.binary())
def test_any_document_is_an_element_or_a_value_error(document):
    try:
        assert isinstance(untrusted_xml.xml_of(document).tag, str)
    except ValueError:
        pass


def test_the_readers_of_python_do_not_do_this():
    """The twin: what this module is for."""
    assert "²".isdigit()
    assert json.loads(HOSTILE["one name twice"]) == {"a": 2}
    assert ET.fromstring(ENTITIES.format("utf-16").encode("utf-16")).text == "bbbb"


def test_what_xml_does_not_have_is_a_question_mark_and_the_rest_is_read_back():
    for code in [*range(0x250), *range(0xD700, 0xE100), *range(0xFFF0, 0x10010), 0x10FFFF]:
        safe = untrusted.xml_safe(f"a{chr(code)}b")
        assert safe in (f"a{chr(code)}b", "a?b")
        read = untrusted_xml.xml_of("<a>{}</a>".format(safe.replace("&", "&amp;").replace("<", "&lt;"))).text
        assert read == safe.replace("\r", "\n")


def test_a_text_of_json_has_no_character_that_xml_does_not_have():
    found = untrusted.json_of('["a\\u0001b\\ufffe", "\\u00e9"]')

    assert untrusted.texts_of(found) == ["a?b?", "\u00e9"] and untrusted.text_of(found[0]) == "a?b?"


@pytest.mark.parametrize("tag", ["int", "i1", "i2", "i4", "i8", "biginteger"])
def test_a_long_number_in_xmlrpc_is_refused_before_python_reads_it(tag):
    """Python 3.6 has no limit of its own, and later releases take 4300 digits."""

    def document(digits):
        return f"<params><param><value><{tag}>{digits}</{tag}></value></param></params>"

    assert untrusted_xml.xmlrpc_of(document("-1"))[0] == (-1,)
    with pytest.raises(ValueError, match="out of range"):
        untrusted_xml.xmlrpc_of(document("9" * 4000))
