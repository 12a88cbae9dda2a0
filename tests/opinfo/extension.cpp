// The recorder inside a Python process, for op_tests.py: a step is recorded with everything dropped that can be made
// again, and autograd's saved tensors go through torch.autograd.graph.saved_tensors_hooks.
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "snug/record/recording.h"
#include "snug/replay/packed_tensor.h"

namespace {

using snug::replay::PackedTensor;

class Recorder {
 public:
  void begin(bool verify) {
    tape_ = std::make_shared<snug::record::Tape>(snug::record::KeepSaved{});
    recording_.emplace(tape_);
    tape_->open_region(/*recompute=*/true);
    if (verify) tape_->verify_replays();
  }

  void end() {
    if (!recording_) return;
    tape_->close_region();
    recording_.reset();
    tape_->finish();
  }

  std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) {
    if (!recording_) throw std::logic_error("pack: nothing is being recorded");
    return std::make_shared<PackedTensor>(tape_, tensor);
  }

  std::int64_t replayed() const { return tape_ ? tape_->replayed_ops() : 0; }
  std::int64_t recorded() const { return tape_ ? tape_->flow().ops() : 0; }

 private:
  std::shared_ptr<snug::record::Tape> tape_;
  std::optional<snug::record::Recording> recording_;
};

std::string reason(const PackedTensor& packed) {
  switch (packed.kept()) {
    case PackedTensor::Kept::Not:
      return "dropped";
    case PackedTensor::Kept::Plan:
      return "plan";
    case PackedTensor::Kept::Leaf:
      return "leaf";
    case PackedTensor::Kept::Layout:
      return "layout";
  }
  return "";
}

}  // namespace

PYBIND11_MODULE(snug_opinfo, m) {
  pybind11::class_<PackedTensor, std::shared_ptr<PackedTensor>>(m, "PackedTensor")
      .def("unpack", &PackedTensor::unpack)
      .def_property_readonly("kept", &reason);
  pybind11::class_<Recorder>(m, "Recorder")
      .def(pybind11::init<>())
      .def("begin", &Recorder::begin, pybind11::arg("verify") = false)
      .def("end", &Recorder::end)
      .def("pack", &Recorder::pack)
      .def_property_readonly("replayed", &Recorder::replayed)
      .def_property_readonly("recorded", &Recorder::recorded);
}
