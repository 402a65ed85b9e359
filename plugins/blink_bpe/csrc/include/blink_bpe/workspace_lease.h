// A thread's workspace, for as long as one text is encoded.
#pragma once

#include <cstddef>
#include <memory>

#include "encoder.h"

namespace blink::bpe {

class WorkspaceLease {
  public:
    WorkspaceLease() : own_(slot().taken ? std::make_unique<Workspace>() : nullptr) { slot().taken = true; }
    WorkspaceLease(const WorkspaceLease&) = delete;
    WorkspaceLease& operator=(const WorkspaceLease&) = delete;

    ~WorkspaceLease() {
        if (own_ != nullptr) return;
        if (slot().workspace.capacity() > kKeptBytes) slot().workspace = {};
        slot().taken = false;
    }

    Workspace& operator*() const { return own_ != nullptr ? *own_ : slot().workspace; }
    Workspace* operator->() const { return &**this; }

  private:
    // What one very long text has needed is not kept by every thread for ever.
    static constexpr size_t kKeptBytes = size_t{16} << 20;

    struct Slot {
        Workspace workspace;
        bool taken = false;
    };

    static Slot& slot() {
        static thread_local Slot slot;
        return slot;
    }

    // A normalizer or a finalizer may encode another text while this one is under way.
    std::unique_ptr<Workspace> own_;
};

}  // namespace blink::bpe
