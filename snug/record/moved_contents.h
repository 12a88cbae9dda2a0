#pragma once

#include <c10/core/Storage.h>

#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/compressed.h"
#include "snug/memory/offloaded.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tiers.h"
#include "snug/plan/run/departures.h"
#include "snug/plan/step/encoding.h"
#include "snug/plan/step/ids.h"
#include "snug/record/stream_order.h"

namespace snug::record {

/// Where contents go, and how much of the device's memory copies on their way there may take.
struct OnTheWay {
  std::optional<memory::Tier> to{};  ///< none: the nearest
  Bytes bytes = 0;                   ///< that the plan counts for this value
  Bytes most = 0;                    ///< that may be on their way at once
};

/// What has left the device's memory of a tape's values: on its way out, elsewhere, and on its way back; or is there in
/// fewer bytes. Nobody waits for copies but streams of the device, which do so when a storage is to go, or to be read,
/// whose copy may not be over.
///
/// Synchronized by the tape's mutex.
class MovedContents {
 public:
  explicit MovedContents(StreamOrder& streams) : streams_(streams) {}
  ~MovedContents();
  MovedContents(const MovedContents&) = delete;
  MovedContents& operator=(const MovedContents&) = delete;

  /// Where contents go; before any does. Others may share them.
  void use(std::shared_ptr<memory::Tiers> tiers) { tiers_ = std::move(tiers); }

  /// The contents of a value's storage go to a tier. The storage stays until they are gone(). Returns those
  /// that must be gone now, so that no more is on its way than may be. Throws Error, and nothing has changed, when they
  /// do not fit there, or cannot be written though they must be now.
  std::vector<plan::ValueId> send(plan::ValueId value, const c10::Storage& storage, Bytes bytes, OnTheWay on_the_way);
  struct InFewerBytes {
    memory::Compressed contents;
    plan::Encoding encoding;
  };
  /// What a storage holds in fewer bytes. Throws Error when it does not fit into those, or there is no memory for it.
  /// Needs no mutex.
  static InFewerBytes compressed(const c10::Storage& storage, Bytes bytes, const plan::Encoding& encoding);
  /// The contents stay on the device like that, and the storage may go.
  void keep(plan::ValueId value, InFewerBytes contents) { contents_.emplace(value, std::move(contents)); }
  struct Left {
    c10::Storage storage;  ///< none where they had been gone before
    bool lost = false;     ///< they could not be written, and are in the storage alone
  };
  /// The device waits until they have left, and the storage may go, or be written.
  Left gone(plan::ValueId value);
  /// Those that are not, the oldest first.
  [[nodiscard]] std::vector<plan::ValueId> on_their_way() const { return departures_.on_their_way(); }
  [[nodiscard]] bool leaving(plan::ValueId value) const { return leaving_.contains(value); }
  /// What fetches it into a new storage, while others may be given up, but not this one. The caller keeps that, and
  /// what reads it waits (see arrived). Throws Error when the contents cannot be read.
  using Fetch = std::function<memory::Offloaded::Arriving()>;
  [[nodiscard]] Fetch fetch(plan::ValueId value) const;
  /// Bytes of its device's memory that its compressed contents take; 0 where there are none.
  [[nodiscard]] Bytes compressed_to(plan::ValueId value) const;
  /// How they are compressed, if they are.
  [[nodiscard]] std::optional<plan::Encoding> encoding(plan::ValueId value) const;
  void arrives(plan::ValueId value, c10::Device device, memory::StreamMark there);
  /// What the device's current stream does from now on comes after the contents are there. Throws Error when they
  /// could not be read.
  void arrived(plan::ValueId value) const;
  /// The storage that was fetched goes.
  void lose(plan::ValueId value);

  /// Nobody needs them any more. Returns whether there were any.
  bool forget(plan::ValueId value);
  template <class Useless>
  void forget_if(const Useless& useless);

 private:
  StreamOrder& streams_;
  std::shared_ptr<memory::Tiers> tiers_ = std::make_shared<memory::Tiers>();  // outlives what is in them
  std::unordered_map<plan::ValueId, std::variant<memory::Offloaded, InFewerBytes>> contents_;
  std::unordered_map<plan::ValueId, c10::Storage> leaving_;
  plan::Departures departures_;
  struct Arriving {
    c10::Device device;
    memory::StreamMark there;
  };
  std::unordered_map<plan::ValueId, Arriving> arriving_;
};

template <class Useless>
void MovedContents::forget_if(const Useless& useless) {
  std::erase_if(contents_, [&](const auto& entry) { return !leaving_.contains(entry.first) && useless(entry.first); });
}

}  // namespace snug::record
