// Torch's memory on the CPU, with freed large blocks kept by their size: a block is reused only for
// a request of the same number of bytes, so that the kept memory is little more than the peak.

#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

struct Blocks : c10::Allocator {
  c10::Allocator* beneath = c10::GetDefaultCPUAllocator();
  size_t large = 0;  // bytes; smaller blocks are left to malloc
  std::mutex mutex;
  std::unordered_map<size_t, std::vector<void*>> kept;
  std::unordered_map<void*, size_t> sizes;  // sizes of all large blocks, kept and in use

  c10::DataPtr allocate(size_t bytes) override {
    void* block = bytes < large ? beneath->raw_allocate(bytes) : large_block(bytes);
    return {block, block, raw_deleter(), c10::DeviceType::CPU};
  }

  void* large_block(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    std::vector<void*>& same = kept[bytes];
    if (same.empty()) {
      void* block = beneath->raw_allocate(bytes);
      sizes[block] = bytes;
      return block;
    }
    void* block = same.back();
    same.pop_back();
    return block;
  }

  c10::DeleterFnPtr raw_deleter() const override;

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Blocks* blocks = nullptr;  // never deleted: torch frees until the process ends

void give_back(void* block) {
  std::lock_guard<std::mutex> lock(blocks->mutex);
  auto found = blocks->sizes.find(block);
  if (found == blocks->sizes.end()) {
    blocks->beneath->raw_deallocate(block);
  } else {
    blocks->kept[found->second].push_back(block);
  }
}

c10::DeleterFnPtr Blocks::raw_deleter() const { return &give_back; }

}  // namespace

// From now on blocks of `large` bytes and more are kept.
extern "C" void keep_blocks(size_t large) {
  if (blocks) return;
  blocks = new Blocks();
  blocks->large = large;
  c10::SetCPUAllocator(blocks);
}
