// How many tokens a second the loaders deliver, beside what training consumes (the demo's model: about 2,000 a second).
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "snug/data/byte_tokenizer.h"
#include "snug/data/libtorch_headers.h"
#include "snug/data/packed_dataset.h"
#include "snug/data/prefetcher.h"
#include "snug/data/text_dataset.h"
#include "snug/data/tokenize.h"

namespace snug::data {
namespace {

constexpr std::int64_t kBatch = 8, kSequence = 256;  // the demo's

template <class Next>
void deliver(benchmark::State& state, const Next& next) {
  for (auto _ : state) benchmark::DoNotOptimize(next());
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBatch * kSequence), benchmark::Counter::kIsRate);
}

void BM_WindowsOfBytes(benchmark::State& state) {
  const TextDataset dataset(TextCorpus::open(libtorch_headers()), {kBatch, kSequence, 0.05, 0});
  Prefetcher<Batch> batches([&](std::int64_t step) { return dataset.train_batch(step); },
                            {.workers = static_cast<int>(state.range(0)), .depth = 4});
  deliver(state, [&] { return batches.next(); });
}
BENCHMARK(BM_WindowsOfBytes)->Arg(0)->Arg(1)->Arg(2)->UseRealTime();

TokenCorpus bytes_as_tokens() {
  return tokenize(TextCorpus::open(libtorch_headers()),
                  [](std::string_view text) { return ByteTokenizer().encode(text); });
}

void BM_WindowsOfTokens(benchmark::State& state) {
  const TextDataset dataset(bytes_as_tokens(), {kBatch, kSequence, 0.05, 0});
  Prefetcher<Batch> batches([&](std::int64_t step) { return dataset.train_batch(step); },
                            {.workers = static_cast<int>(state.range(0)), .depth = 4});
  deliver(state, [&] { return batches.next(); });
}
BENCHMARK(BM_WindowsOfTokens)->Arg(0)->Arg(1)->UseRealTime();

void BM_RowsOfDocuments(benchmark::State& state) {
  PackedDatasetOptions options{.batch = kBatch, .sequence = kSequence};
  const PackedDataset dataset(bytes_as_tokens(), options);
  Prefetcher<Batch> batches([&](std::int64_t step) { return dataset.train_batch(step); },
                            {.workers = static_cast<int>(state.range(0)), .depth = 4});
  deliver(state, [&] { return batches.next(); });
}
BENCHMARK(BM_RowsOfDocuments)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace snug::data
