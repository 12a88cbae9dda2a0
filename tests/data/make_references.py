"""Writes the files beside it with the reference implementations: make_references.py [tokens|conversion|images...], all unless
some are named (needs tokenizers, sentencepiece, pillow; transformers and protobuf for the conversion).

gpt2.json, llama3.json, smollm.json: small byte-level BPE tokenizers of the `tokenizers` library, with these models' pre-tokenizers.
bpe.model, unigram.model: small SentencePiece models; the first falls back to bytes, the second has normalization rules.
tokens.json: the ids that each of them gives for STRINGS, and the text that SentencePiece makes of those again.
bpe_converted.json: the tokenizer.json that transformers makes of bpe.model, without its merges.
images/: pictures in the formats that there are, and images.json: the pixels that Pillow decodes.
"""
import io
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).parent

LINES = [
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind, and the fox isn't sorry.",
    "We'll see what they've done: I'm sure it's fine, you're right, he'd agree. WE'LL SEE, IT'S FINE!",
    "In 1999 there were 12345 of them, 67 in 2024, and 3.14159 of pi. Call 555-0199 at 10:30.",
    "Die Größe der Straße wäre für Müller schöner; naïve café, déjà vu, señor, Ångström, Łódź.",
    "Быстрая лиса прыгает через ленивую собаку. Καλημέρα κόσμε. שלום עולם. مرحبا بالعالم.",
    "東京の天気は晴れです。今日は良い天気ですね。中文分词测试。한국어 문장 테스트입니다.",
    "नमस्ते दुनिया। สวัสดีชาวโลก. emoji: 😀😃🎉🚀 and family 👨‍👩‍👧‍👦, flags 🇩🇪🇫🇷, thumbs 👍🏽.",
    "def f(x):\n    return x ** 2  # square\n\nfor i in range(10):\n\tprint(f(i), end=' ')\n",
    "Tabs\tand  double  spaces   and trailing blanks   \nand\r\nWindows\r\nline ends\r\n\r\n",
    "int main() { std::vector<int> v{1, 2, 3}; return v.size() == 3 ? 0 : 1; }",
]

STRINGS = [
    "",
    " ",
    "Hello, world!",
    "the quick brown fox",
    " leading and trailing   ",
    "a  b   c    d",
    "line\nline\n\nline\n\n\nend",
    "windows\r\nlines\r\n\r\nend\r",
    "\ttabs\t\tand \t mixed \n \n blanks \u00a0 nbsp\u2003em\u3000ideographic",
    "I'm you're he'd we'll they've isn't 'tis O'Neil",
    "I'M YOU'RE HE'D WE'LL THEY'VE ISN'T I'm'll",
    "it\u2019s a curly one",
    "1 12 123 1234 12345 1234567890 3.14 1,000,000 2024-11-22",
    "\u0661\u0662\u0663\u0664 \u0967\u0968\u0969 \uff11\uff12\uff13 \u2167 \u00bd \u00b2 \u2460 \U0001d7d8",
    "abc123def4567",
    "Gr\u00f6\u00dfe stra\u00dfe M\u00fcller",
    "Gro\u0308\u00dfe cafe\u0301 n\u0303 e\u0301\u0302\u0323 combining",
    "\u0411\u044b\u0441\u0442\u0440\u0430\u044f \u043b\u0438\u0441\u0430, \u03ba\u03cc\u03c3\u03bc\u03b5! \u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u0645\u0631\u062d\u0628\u0627\u064b",
    "\u6771\u4eac\u306e\u5929\u6c17\u3001\u4eca\u65e5\u306f\u826f\u3044\u3002\ud55c\uad6d\uc5b4 \ubb38\uc7a5 \u1112\u1161\u11ab",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\U0001f600\U0001f389 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd \u2764\ufe0f",
    "zero\u200bwidth\u200djoiner\ufeffbom\u00adshy",
    "\u202eright to left\u202c",
    "a\u0000b\u0001c\u007fd\u0085e\u2028f\u2029g",
    "!!! ??? ... --- === ### <<>> (a) [b] {c} \"quoted\" `code`",
    "x=1;y=2;\n\n  if(x<y){\n    z++;\n  }\n",
    "<|end|>",
    "before <|end|> after<|end|><|end|>",
    "<|start|>user\nhi<|end|>\n",
    "<|en d|> <s> </s> <unk> <0x41> \u2581",
    "\u01c5\u02b0\u00aa\u00ba letters of other kinds \u1c80 \U00010400",
    "\uff21\ufb01\u2460 compatibility",
    "supercalifragilisticexpialidocious" * 3,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.org/path?query=1&x=%20#frag user@example.org",
    "\U0010ffff\U000e0001\ue000 unassigned and private \u0378",
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level_tokenizers():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, decoders, trainers
    byte_level = pre_tokenizers.ByteLevel
    kinds = {
        "gpt2": byte_level(add_prefix_space=False, use_regex=True),
        "llama3": pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
            byte_level(add_prefix_space=False, use_regex=False)]),
        "smollm": pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            byte_level(add_prefix_space=False, use_regex=True)]),
    }
    for name, pre_tokenizer in kinds.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=560, min_frequency=2, show_progress=False,
                                      special_tokens=["<|start|>", "<|end|>"],
                                      initial_alphabet=byte_level.alphabet())
        tokenizer.train_from_iterator(LINES * 3, trainer)
        (HERE / f"{name}.json").write_text(tokenizer.to_str(), encoding="utf-8")
        yield name, tokenizer


def sentence_pieces():
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    lines = [line.replace("\n", " ").replace("\r", " ") for line in LINES * 5]

    def train(name, **options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, num_threads=1,
                                                 minloglevel=2, **options)
        proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
        proto.normalizer_spec.normalization_rule_tsv = ""
        (HERE / f"{name}.model").write_bytes(proto.SerializeToString())
        return name, sentencepiece.SentencePieceProcessor(model_file=str(HERE / f"{name}.model"))

    yield train("bpe", model_type="bpe", vocab_size=520, byte_fallback=True, character_coverage=0.98,
                normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
                allow_whitespace_only_pieces=True, user_defined_symbols=["<|end|>"])
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        # The rules of a full normalization would take a quarter of a MiB.
        rules.write("FF21\t41\nFB01\t66 69\n2460\t31\nA0\t20\n3000\t20\n65 301\tE9\n200B\t\n")
        rules.flush()
        yield train("unigram", model_type="unigram", vocab_size=300, hard_vocab_limit=False,
                    normalization_rule_tsv=rules.name, pad_id=3)


def write_tokens():
    result = {"strings": STRINGS, "ids": {}, "decoded": {}}
    for name, tokenizer in byte_level_tokenizers():
        result["ids"][name] = [tokenizer.encode(s).ids for s in STRINGS]
    for name, processor in sentence_pieces():
        result["ids"][name] = [processor.encode(s) for s in STRINGS]
        result["decoded"][name] = [processor.decode(ids) for ids in result["ids"][name]]
    text = json.dumps(result)
    (HERE / "tokens.json").write_text(text.replace("], ", "],\n").replace("\", \"", "\",\n\"") + "\n", encoding="utf-8")


def png_by_hand(pixels, depth):
    """An interlaced PNG of RGB pixels of 8 or 16 bits, which Pillow reads and does not write."""
    height, width, _ = pixels.shape
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b""
    for top, left, down, right in passes:
        part = pixels[top::down, left::right]
        if part.size:
            rows += b"".join(b"\0" + row.astype(f">u{depth // 8}").tobytes() for row in part)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write_images():
    import numpy
    from PIL import Image
    folder = HERE / "images"
    folder.mkdir(exist_ok=True)
    y, x = numpy.mgrid[0:13, 0:18]
    pixels = numpy.stack([x * 13, y * 17 + x, 255 - x * 7 - y * 8], -1).astype(numpy.uint8)
    pixels[3:6, 4:11] = (200, 30, 60)
    rgb = Image.fromarray(pixels)
    alpha = Image.fromarray((x * 13).astype(numpy.uint8))
    with_alpha = rgb.copy()
    with_alpha.putalpha(alpha)
    grey = rgb.convert("L")
    palette = rgb.quantize(16)
    jpeg = dict(format="JPEG", quality=88)
    images = {
        "rgb.png": (rgb, {}), "grey.png": (grey, {}), "bits.png": (rgb.convert("1"), {}), "rgba.png": (with_alpha, {}),
        "grey_alpha.png": (with_alpha.convert("LA"), {}), "palette.png": (palette, {}),
        "palette_clear.png": (palette, {"transparency": 3}),
        "rgb.jpg": (rgb, jpeg), "grey.jpg": (grey, jpeg), "progressive.jpg": (rgb, {**jpeg, "progressive": True}),
        "full_colour.jpg": (rgb, {**jpeg, "subsampling": 0}), "inks.jpg": (rgb.convert("CMYK"), jpeg),
    }
    for name, (image, options) in images.items():
        image.save(folder / name, **options)
    (folder / "interlaced.png").write_bytes(png_by_hand(pixels, 8))
    (folder / "wide.png").write_bytes(png_by_hand(pixels.astype(numpy.uint16) * 256 + 77, 16))
    expected = {}
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg") and p.stem != "small"):
        image = Image.open(path)
        expected[path.name] = image.convert("RGB").tobytes().hex()
    resized = {f"{w}x{h}": rgb.resize((w, h), Image.Resampling.BILINEAR).tobytes().hex() for w, h in ((7, 5), (25, 20))}
    rgb.resize((6, 4)).save(folder / "small.png")
    result = {"width": rgb.width, "height": rgb.height, "pixels": expected, "grey": grey.tobytes().hex(),
              "resized": resized}
    (folder / "images.json").write_text(json.dumps(result, indent=0) + "\n")


def write_conversion():
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "bpe.model", pathlib.Path(folder) / "tokenizer.model")
        transformers.LlamaTokenizer.from_pretrained(folder).save_pretrained(folder)
        converted = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
    converted["model"]["merges"] = []
    (HERE / "bpe_converted.json").write_text(json.dumps(converted, indent=0) + "\n")


PARTS = {"tokens": write_tokens, "conversion": write_conversion, "images": write_images}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
