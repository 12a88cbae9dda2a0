#include "snug/record/moved_contents.h"

#include <utility>

#include "snug/base/match.h"
#include "snug/record/encodings.h"

namespace snug::record {

MovedContents::~MovedContents() {
  for (const plan::ValueId value : on_their_way()) gone(value);
  while (!arriving_.empty()) lose(arriving_.begin()->first);
}

std::vector<plan::ValueId> MovedContents::send(plan::ValueId value, const c10::Storage& storage, Bytes bytes,
                                               OnTheWay on_the_way) {
  auto sent =
      memory::Offloaded::sent(storage, bytes, *tiers_, on_the_way.to.value_or(tiers_->nearest(storage.device())));
  const bool waits = on_the_way.most == 0 || on_the_way.bytes > on_the_way.most;
  if (waits && storage.device().is_cpu()) sent.left().wait();
  const bool is_on_its_way = static_cast<bool>(sent.left());
  if (!contents_.emplace(value, std::move(sent)).second || !is_on_its_way) return {};
  leaving_.emplace(value, storage);
  return departures_.begin(value, on_the_way.bytes, on_the_way.most);
}

MovedContents::InFewerBytes MovedContents::compressed(const c10::Storage& storage, Bytes bytes,
                                                      const plan::Encoding& encoding) {
  const memory::Compressed::As as{.codec = codec_of(encoding.codec),
                                  .element = static_cast<std::size_t>(encoding.element),
                                  .bytes = encoding.content_bytes};
  return {memory::Compressed(storage, bytes, as), encoding};
}

MovedContents::Fetch MovedContents::fetch(plan::ValueId value) const {
  return std::visit(Match{[](const memory::Offloaded& moved) -> Fetch { return [&moved] { return moved.fetch(); }; },
                          [](const InFewerBytes& there) -> Fetch {
                            return [contents = there.contents] {  // it may be given up meanwhile
                              return memory::Offloaded::Arriving{contents.expand(), {}};
                            };
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

MovedContents::Left MovedContents::gone(plan::ValueId value) {
  const auto leaving = leaving_.find(value);
  if (leaving == leaving_.end()) return {};
  Left left{std::move(leaving->second)};
  leaving_.erase(leaving);
  departures_.end(value);
  left.lost = !streams_.let_all_wait(left.storage.device(), std::get<memory::Offloaded>(contents_.at(value)).left());
  if (left.lost) contents_.erase(value);
  return left;
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
  const bool lost = gone(value).lost;
  return contents_.erase(value) > 0 || lost;
}

}  // namespace snug::record
