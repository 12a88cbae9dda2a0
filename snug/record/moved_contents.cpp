#include "snug/record/moved_contents.h"

#include <utility>

#include "snug/base/match.h"
#include "snug/record/encodings.h"

namespace snug::record {

MovedContents::~MovedContents() {
  all_gone();
  while (!arriving_.empty()) lose(arriving_.begin()->first);
}

void MovedContents::send(plan::ValueId value, const c10::Storage& storage, Bytes bytes, OnTheWay on_the_way) {
  auto sent = memory::Offloaded::sent(storage, bytes, *tiers_, tiers_->nearest(storage.device()));
  const bool is_on_its_way = static_cast<bool>(sent.left());
  if (!contents_.emplace(value, std::move(sent)).second || !is_on_its_way) return;
  leaving_.emplace(value, storage);
  for (const plan::ValueId other : departures_.begin(value, on_the_way.bytes, on_the_way.most)) gone(other);
}

void MovedContents::compress(plan::ValueId value, const c10::Storage& storage, Bytes bytes,
                             const plan::Encoding& encoding) {
  const memory::Compressed::As as{.codec = codec_of(encoding.codec),
                                  .element = static_cast<std::size_t>(encoding.element),
                                  .bytes = encoding.content_bytes};
  contents_.emplace(value, InFewerBytes{memory::Compressed(storage, bytes, as), encoding});
}

memory::Offloaded::Arriving MovedContents::fetch(plan::ValueId value) const {
  return std::visit(Match{[](const memory::Offloaded& moved) { return moved.fetch(); },
                          [](const InFewerBytes& there) {
                            return memory::Offloaded::Arriving{there.contents.expand(), {}};
                          }},
                    contents_.at(value));
}

Bytes MovedContents::compressed_to(plan::ValueId value) const {
  const auto found = contents_.find(value);
  const auto* const there = found != contents_.end() ? std::get_if<InFewerBytes>(&found->second) : nullptr;
  return there != nullptr ? there->contents.bytes() : 0;
}

std::optional<plan::Encoding> MovedContents::encoding(plan::ValueId value) const {
  const auto found = contents_.find(value);
  const auto* const there = found != contents_.end() ? std::get_if<InFewerBytes>(&found->second) : nullptr;
  return there != nullptr ? std::optional(there->encoding) : std::nullopt;
}

c10::Storage MovedContents::gone(plan::ValueId value) {
  if (leaving_.empty()) return {};
  const auto left = leaving_.find(value);
  if (left == leaving_.end()) return {};
  c10::Storage storage = std::move(left->second);
  leaving_.erase(left);
  departures_.end(value);
  streams_.let_all_wait(storage.device(), std::get<memory::Offloaded>(contents_.at(value)).left());
  return storage;
}

void MovedContents::all_gone() {
  for (const plan::ValueId value : on_their_way()) gone(value);
}

void MovedContents::arrives(plan::ValueId value, c10::Device device, memory::StreamMark there) {
  if (there) arriving_.insert_or_assign(value, Arriving{device, std::move(there)});
}

void MovedContents::arrived(plan::ValueId value) const {
  const auto found = arriving_.find(value);
  if (found != arriving_.end()) StreamOrder::let_wait(found->second.device, found->second.there);
}

void MovedContents::lose(plan::ValueId value) {
  const auto found = arriving_.find(value);
  if (found == arriving_.end()) return;
  streams_.let_all_wait(found->second.device, found->second.there);
  arriving_.erase(found);
}

bool MovedContents::forget(plan::ValueId value) {
  gone(value);
  return contents_.erase(value) > 0;
}

}  // namespace snug::record
