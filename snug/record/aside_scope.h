#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "snug/record/recording_key.h"
#include "snug/record/tape_mutex.h"
#include "snug/record/tape_observer.h"

namespace snug::record {

/// Work on contents that is no part of the step as it is: observers know, autograd and the recorder do not see it, and
/// the mutex is lent meanwhile.
class AsideScope {
 public:
  AsideScope(TapeMutex& mutex, const TapeObservers& observers) : told_(observers), lent_(mutex) {}

 private:
  struct Told {
    explicit Told(const TapeObservers& to) : observers(to) { observers.tell_recording(&TapeObserver::aside_begins); }
    ~Told() { observers.tell_recording(&TapeObserver::aside_ends); }
    Told(const Told&) = delete;
    Told& operator=(const Told&) = delete;
    const TapeObservers& observers;
  };
  Told told_;  // under the mutex
  at::AutoDispatchBelowADInplaceOrView below_;
  c10::impl::ExcludeDispatchKeyGuard unseen_{kRecordingKey};
  TapeMutex::Lent lent_;
};

}  // namespace snug::record
