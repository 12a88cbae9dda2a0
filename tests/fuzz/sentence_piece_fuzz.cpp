// What is checked of a SentencePiece model before its library reads it.
#include "snug/base/errors.h"
#include "snug/data/sentence_piece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    snug::data::check_sentence_piece_model({data, size}, "f");
  } catch (const snug::Error&) {
  }
  return 0;
}
