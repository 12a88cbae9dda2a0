#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "snug/memory/contents_room.h"
#include "snug/parallel/bucket_layout.h"
#include "snug/parallel/shard_exchange.h"

namespace snug::parallel {

/// Contents that processes have in even parts, of which this one has the shard: they are put together from all whenever
/// somebody asks for them, by who asks alone. What is written there is written by all: each keeps its own. The shard is
/// a tensor like others, which may be in a tier (StreamedTensors): it is read there then, as what is written to it is
/// back there whenever it may be asked for, and only what is done to the shard itself changes it.
class ShardedRoom final : public memory::ContentsRoom {
 public:
  /// `like`: whose contents it is for, in one piece; which they become is for write() to say. `number`: the same for
  /// the same parameter in all processes, and for no other.
  ShardedRoom(std::shared_ptr<ShardExchange> exchange, const at::Tensor& like, std::int64_t number);

  /// What this process has: a leaf of one dimension, of elements of the parameter's type.
  [[nodiscard]] const at::Tensor& shard() const noexcept { return shard_; }
  [[nodiscard]] const EvenShards& shards() const noexcept { return shards_; }

  memory::StreamMark write(const at::Tensor& contents) override;
  [[nodiscard]] memory::StreamMark read(const at::Tensor& contents,
                                        std::vector<memory::StreamMark> after) const override;
  void read_now(const at::Tensor& contents) const override;

  [[nodiscard]] const memory::StreamMark& written() const noexcept override { return written_; }
  [[nodiscard]] Bytes bytes() const noexcept override;
  [[nodiscard]] Bytes on_disk() const noexcept override { return 0; }
  [[nodiscard]] bool takes_gradients() const noexcept override { return false; }

 private:
  [[nodiscard]] at::Tensor part_of(const at::Tensor& contents, int rank) const;
  class Parts;
  [[nodiscard]] std::shared_ptr<Parts> begin(const at::Tensor& contents) const;
  [[nodiscard]] memory::StreamMark read_own(const at::Tensor& contents) const;

  std::shared_ptr<ShardExchange> exchange_;
  EvenShards shards_;
  std::int64_t number_;
  at::Tensor shard_, bytes_of_shard_;
  memory::StreamMark written_;
};

}  // namespace snug::parallel
