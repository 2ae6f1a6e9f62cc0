// Memory of whole pages that costs nothing until it is touched.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace ml {

// Packed weights are read from end to end: huge pages. A cache is touched here and there: small ones, so that it costs
// only what is used.
enum class PageSize { kHuge, kSmall };

template <class T>
class Pages {
 public:
  Pages() = default;
  Pages(int64_t count, PageSize size) : bytes_(std::max<size_t>(size_t(count) * sizeof(T), 1)) {
    void* p = mmap(nullptr, bytes_ + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = p;
    data_ = reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + kHuge - 1) / kHuge * kHuge);
#if defined(MADV_HUGEPAGE)
    madvise(data_, bytes_, size == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)size;
#endif
  }
  Pages(Pages&& other) noexcept { *this = std::move(other); }
  Pages& operator=(Pages&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Pages() {
    if (base_) munmap(base_, bytes_ + kHuge);
  }
  T* data() const { return data_; }

 private:
  static constexpr size_t kHuge = 2 << 20;
  void* base_ = nullptr;
  T* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace ml
