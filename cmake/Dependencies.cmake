# Everything snug is built from, in one place, with the reason. Names in brackets are Debian packages.
find_package(LibTorch 2.11...<2.16 REQUIRED)       # tensors, autograd, kernels, c10d
# Header-only: LibTorch brings headers of another fmt, in front of these, without its library.
find_package(fmt 9 REQUIRED)                       # text formatting, as std::format is not in g++ 12 [libfmt-dev]
find_package(nlohmann_json 3.11 REQUIRED)          # JSON: plans, metrics, --json [nlohmann-json3-dev]
find_package(tomlplusplus 3.3 REQUIRED)            # TOML configuration files [libtomlplusplus-dev]
# base/hash.cpp only.
find_package(xxHash 0.8 REQUIRED)                  # hashes: what a step is, replays, training state [libxxhash-dev]
# memory/uring_io.cpp only; without it a few threads wait for the disk.
find_package(Liburing)                             # io_uring: moving contents to a disk and back [liburing-dev]
# plan/bound/minimum_cut.cpp only.
find_package(Boost 1.74 REQUIRED)                  # Boost.Graph, header-only: minimum cuts [libboost-dev]
if(SNUG_BUILD_TRAINING)
  find_package(CLI11 2.1 REQUIRED)                 # command line parsing and --help [libcli11-dev]
  # data/pre_tokenizer.cpp only.
  find_package(PCRE2 10.40 REQUIRED)                 # regular expressions with Unicode's classes [libpcre2-dev]
  # report/table.cpp only.
  find_package(Utf8proc 2.8 REQUIRED)                # widths of characters on terminals [libutf8proc-dev]
  # data/sentence_piece.cpp only.
  find_package(SentencePiece REQUIRED)               # SentencePiece's models of tokenizers [libsentencepiece-dev]
  # data/jpeg_image.cpp and data/png_image.cpp only.
  find_package(JPEG REQUIRED)                        # images [libjpeg-dev]
  find_package(PNG 1.6 REQUIRED)                     # images [libpng-dev]
endif()
if(SNUG_BUILD_TESTS)
  find_package(GTest 1.12 REQUIRED)                # tests [libgtest-dev, libgmock-dev]
  find_package(rapidcheck REQUIRED)                # random programs that shrink when they fail [librapidcheck-dev]
endif()
if(SNUG_BUILD_BENCHMARKS)
  find_package(benchmark 1.7 REQUIRED)             # micro-benchmarks [libbenchmark-dev]
endif()
