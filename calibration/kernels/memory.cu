// Copy, read and write bandwidth; launch latency with and without CUDA graphs; KV blocks to pinned host memory and back.
#include <chrono>

#include "common.cuh"

namespace {

constexpr int kThreads = 512;

__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* p, size_t count, uint32_t* out, bool checked) {
  constexpr int kUnroll = 8;
  size_t stride = static_cast<size_t>(gridDim.x) * kThreads, i = blockIdx.x * static_cast<size_t>(kThreads) + threadIdx.x;
  uint32_t sum = 0;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 v[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) v[k] = load_once(p + i + k * stride);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) sum += v[k].x + v[k].y + v[k].z + v[k].w;
  }
  for (; i < count; i += stride) sum += p[i].x + p[i].y + p[i].z + p[i].w;
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (sum == 0x12345678u || checked) atomicAdd(out, (threadIdx.x & 31) == 0 ? sum : 0u);  // keeps the loads alive
}
__global__ void __launch_bounds__(kThreads) copy_kernel(const uint4* a, uint4* b, size_t count) {
  size_t stride = static_cast<size_t>(gridDim.x) * kThreads, i = blockIdx.x * static_cast<size_t>(kThreads) + threadIdx.x;
  for (; i + stride < count; i += 2 * stride) {
    uint4 x = __ldcs(a + i), y = __ldcs(a + i + stride);
    __stcs(b + i, x), __stcs(b + i + stride, y);
  }
  if (i < count) b[i] = a[i];
}
__global__ void __launch_bounds__(kThreads) write_kernel(uint4* b, size_t count, uint32_t v) {
  size_t stride = static_cast<size_t>(gridDim.x) * kThreads;
  for (size_t i = blockIdx.x * static_cast<size_t>(kThreads) + threadIdx.x; i < count; i += stride) b[i] = make_uint4(v, v, v, v);
}
__global__ void bits_kernel(uint32_t* p, size_t count) {
  size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count; i += stride) p[i] = mix(i);
}
__global__ void empty_kernel() {}

// Gather (or scatter) KV blocks: pieces of `vecs` 16-byte words between their places in the cache and a dense buffer,
// which may be device memory or mapped host memory.
__global__ void move_blocks_kernel(uint4* cache, uint4* dense, const int* blocks, int vecs, bool gather) {
  uint4* in_cache = cache + static_cast<size_t>(blocks[blockIdx.x]) * vecs;
  uint4* in_dense = dense + static_cast<size_t>(blockIdx.x) * vecs;
  for (int i = threadIdx.x; i < vecs; i += blockDim.x) {
    if (gather)
      in_dense[i] = in_cache[i];
    else
      in_cache[i] = in_dense[i];
  }
}

int check_memory(size_t bytes) {
  size_t words = bytes / 4, vecs = bytes / 16;
  uint32_t *a = device_alloc<uint32_t>(words), *b = device_alloc<uint32_t>(words), *sum = device_alloc<uint32_t>(1);
  bits_kernel<<<264, 256>>>(a, words);
  CHECK_LAUNCH();
  CHECK(cudaMemset(b, 0xff, bytes));
  CHECK(cudaMemset(sum, 0, 4));
  read_kernel<<<264, kThreads>>>(reinterpret_cast<uint4*>(a), vecs, sum, true);
  CHECK_LAUNCH();
  copy_kernel<<<264, kThreads>>>(reinterpret_cast<uint4*>(a), reinterpret_cast<uint4*>(b), vecs);
  CHECK_LAUNCH();
  std::vector<uint32_t> ha = to_host(a, words), hb = to_host(b, words), hs = to_host(sum, 1);
  uint32_t want = 0;
  size_t differ = 0;
  for (size_t i = 0; i < words; ++i) want += ha[i], differ += ha[i] != hb[i] || ha[i] != mix(i);
  write_kernel<<<264, kThreads>>>(reinterpret_cast<uint4*>(b), vecs, 42);
  CHECK_LAUNCH();
  size_t unwritten = 0;
  for (uint32_t x : to_host(b, words)) unwritten += x != 42;
  for (void* p : {a, b, sum}) CHECK(cudaFree(p));
  int bad = report_check("read", format("%zu bytes, sum of words", bytes), hs[0] != want, 0);
  bad += report_check("copy", format("%zu bytes, words that differ", bytes), static_cast<double>(differ), 0);
  return bad + report_check("write", format("%zu bytes, words not written", bytes), static_cast<double>(unwritten), 0);
}

void time_bandwidth(bool quick) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  int grid = device_properties().multiProcessorCount * 4;
  size_t most = 4ull << 30;
  char *a = device_alloc<char>(most), *b = device_alloc<char>(most);
  bits_kernel<<<1056, 512>>>(reinterpret_cast<uint32_t*>(a), most / 4);
  bits_kernel<<<1056, 512>>>(reinterpret_cast<uint32_t*>(b), most / 4);
  CHECK_LAUNCH();
  uint32_t* sum = device_alloc<uint32_t>(1);
  for (size_t bytes = quick ? 1ull << 30 : 1ull << 20; bytes <= (quick ? 1ull << 30 : most); bytes *= 4) {
    int copies = static_cast<int>(std::clamp<size_t>((1ull << 30) / bytes, 1, std::min<size_t>(256, most / bytes)));
    size_t vecs = bytes / 16;
    auto at = [&](char* p, int i) { return reinterpret_cast<uint4*>(p + (i % copies) * bytes); };
    auto emit = [&](const char* what, double factor, const std::function<void(int)>& f) {
      Timing t = time_graph(stream, copies, f);
      Row("bandwidth").text("kernel", !strcmp(what, "memcpy") ? "runtime" : "own").text("what", what).count("bytes", static_cast<long long>(bytes)).timing(t)
          .num("GBps", factor * bytes / t.us / 1e3).print();
    };
    emit("read", 1, [&](int i) { read_kernel<<<grid, kThreads, 0, stream>>>(at(a, i), vecs, sum, false); CHECK_LAUNCH(); });
    emit("write", 1, [&](int i) { write_kernel<<<grid, kThreads, 0, stream>>>(at(b, i), vecs, 42); CHECK_LAUNCH(); });
    emit("copy", 2, [&](int i) { copy_kernel<<<grid, kThreads, 0, stream>>>(at(a, i), at(b, i), vecs); CHECK_LAUNCH(); });
    emit("memcpy", 2, [&](int i) { CHECK(cudaMemcpyAsync(at(b, i), at(a, i), bytes, cudaMemcpyDeviceToDevice, stream)); });
  }
  for (void* p : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(sum)}) CHECK(cudaFree(p));
  CHECK(cudaStreamDestroy(stream));
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Samples of `body()` on the host clock, microseconds per unit of work.
Timing host_samples(int samples, double per, const std::function<void()>& body) {
  std::vector<double> v;
  for (int i = 0; i < samples + 3; ++i) {
    double t = now_us();
    body();
    if (i >= 3) v.push_back((now_us() - t) / per);
  }
  return summarise(v);
}

void time_launches() {
  cudaStream_t s;
  CHECK(cudaStreamCreate(&s));
  auto sync = [&] { CHECK(cudaStreamSynchronize(s)); };
  auto launch = [&] { empty_kernel<<<1, 32, 0, s>>>(); CHECK_LAUNCH(); };
  auto emit = [](const char* what, int kernels, const Timing& t) { Row("launch").text("what", what).count("kernels", kernels).timing(t).print(); };
  emit("one launch to completion seen by the host", 1, host_samples(200, 1, [&] { launch(), sync(); }));
  emit("launch, queued back to back, per kernel", 1000, host_samples(30, 1000, [&] { for (int i = 0; i < 1000; ++i) launch(); sync(); }));
  {
    std::vector<double> v;  // host time of the call alone
    for (int i = 0; i < 60; ++i) {
      sync();
      double t = now_us();
      for (int k = 0; k < 50; ++k) launch();
      v.push_back((now_us() - t) / 50);
    }
    emit("launch call on the host, queue not full, per kernel", 50, summarise(v));
  }
  for (int n : {1, 10, 100, 300, 1000}) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; ++i) launch();
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    emit("graph replay to completion seen by the host, whole graph", n, host_samples(50, 1, [&] { CHECK(cudaGraphLaunch(exec, s)); sync(); }));
    std::vector<double> v;
    for (int i = 0; i < 50; ++i) {
      sync();
      double t = now_us();
      CHECK(cudaGraphLaunch(exec, s));
      v.push_back(now_us() - t);
    }
    emit("graph launch call on the host, whole graph", n, summarise(v));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
  }
  CHECK(cudaStreamDestroy(s));
}

// KV blocks of one layer's K and V (16 tokens x 8 heads x 128, bf16: 32 KiB each) for a 32-layer model: 64 pieces a block.
class HostCopy {
 public:
  explicit HostCopy(int most) : most_(most) {
    cache_ = device_alloc<char>(2ull * most * kPieces * kPiece);
    bits_kernel<<<1056, 512>>>(reinterpret_cast<uint32_t*>(cache_), 2ull * most * kPieces * kPiece / 4);
    CHECK_LAUNCH();
    staging_ = device_alloc<char>(static_cast<size_t>(most) * kPieces * kPiece);
    CHECK(cudaHostAlloc(reinterpret_cast<void**>(&host_), static_cast<size_t>(most) * kPieces * kPiece, cudaHostAllocMapped));
    memset(host_, 0xff, static_cast<size_t>(most) * kPieces * kPiece);
    for (int i = 0; i < 2 * most * kPieces; ++i) order_.push_back(i);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(3));
    d_order_ = to_device(order_);
    CHECK(cudaStreamCreate(&s_));
  }
  ~HostCopy() {
    cudaFree(cache_), cudaFree(staging_), cudaFree(d_order_), cudaFreeHost(host_), cudaStreamDestroy(s_);
  }
  void pieces(int n, bool out) {
    for (int i = 0; i < n * kPieces; ++i) {
      char *d = cache_ + static_cast<size_t>(order_[i]) * kPiece, *h = host_ + static_cast<size_t>(i) * kPiece;
      CHECK(cudaMemcpyAsync(out ? h : d, out ? d : h, kPiece, out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, s_));
    }
  }
  void staged(int n, bool out) {
    size_t bytes = static_cast<size_t>(n) * kPieces * kPiece;
    if (!out) CHECK(cudaMemcpyAsync(staging_, host_, bytes, cudaMemcpyHostToDevice, s_));
    move_blocks_kernel<<<n * kPieces, 256, 0, s_>>>(reinterpret_cast<uint4*>(cache_), reinterpret_cast<uint4*>(staging_), d_order_, kPiece / 16, out);
    CHECK_LAUNCH();
    if (out) CHECK(cudaMemcpyAsync(host_, staging_, bytes, cudaMemcpyDeviceToHost, s_));
  }
  void mapped(int n, bool out) {
    move_blocks_kernel<<<n * kPieces, 256, 0, s_>>>(reinterpret_cast<uint4*>(cache_), reinterpret_cast<uint4*>(host_), d_order_, kPiece / 16, out);
    CHECK_LAUNCH();
  }
  void dense(int n, bool out) {
    size_t bytes = static_cast<size_t>(n) * kPieces * kPiece;
    CHECK(cudaMemcpyAsync(out ? host_ : staging_, out ? staging_ : host_, bytes, out ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice, s_));
  }
  // Out to the host, wipe the cache, back in: every listed piece must be as before.
  int check(const char* what, void (HostCopy::*move)(int, bool)) {
    size_t words = static_cast<size_t>(most_) * kPieces * kPiece / 4, wrong = 0;
    bits_kernel<<<1056, 512>>>(reinterpret_cast<uint32_t*>(cache_), 2 * words);
    CHECK_LAUNCH();
    CHECK(cudaDeviceSynchronize());
    memset(host_, 0xff, words * 4);
    (this->*move)(most_, true);
    CHECK(cudaStreamSynchronize(s_));
    CHECK(cudaMemset(cache_, 0xff, words * 8));
    (this->*move)(most_, false);
    CHECK(cudaStreamSynchronize(s_));
    std::vector<uint32_t> got = to_host(reinterpret_cast<uint32_t*>(cache_), 2 * words);
    for (size_t i = 0; i < static_cast<size_t>(most_) * kPieces; ++i)
      for (int w = 0; w < kPiece / 4; ++w) {
        size_t at = static_cast<size_t>(order_[i]) * (kPiece / 4) + w;
        wrong += got[at] != mix(at);
      }
    return report_check("host_copy", format("%s, words wrong after a round trip", what), static_cast<double>(wrong), 0);
  }
  int checks() {
    return check("one copy a piece", &HostCopy::pieces) + check("gathered, one copy", &HostCopy::staged) + check("kernel over mapped memory", &HostCopy::mapped);
  }
  void time() {
    for (int n : {1, 4, 16, 64, 256}) {
      if (n > most_) continue;
      auto emit = [&](const char* how, void (HostCopy::*move)(int, bool)) {
        for (bool out : {true, false}) {
          Timing t = host_samples(kMinSamples, 1, [&] { (this->*move)(n, out); CHECK(cudaStreamSynchronize(s_)); });
          double bytes = static_cast<double>(n) * kPieces * kPiece;
          Row("host_copy").text("how", how).text("direction", out ? "to_host" : "to_device").count("blocks", n).num("bytes", bytes).timing(t)
              .num("GBps", bytes / t.us / 1e3).print();
        }
      };
      emit("dense, one copy", &HostCopy::dense);
      emit("one copy a piece of 32 KiB", &HostCopy::pieces);
      emit("gathered on the device, one copy", &HostCopy::staged);
      emit("kernel over mapped host memory", &HostCopy::mapped);
    }
  }

 private:
  static constexpr int kPieces = 64, kPiece = 32768;
  int most_;
  char *cache_, *staging_, *host_;
  std::vector<int> order_;
  int* d_order_;
  cudaStream_t s_;
};

}  // namespace

int main(int argc, char** argv) {
  bool quick = has_flag(argc, argv, "--quick");
  if (has_flag(argc, argv, "--check")) return check_memory((1u << 20) + 16 * 77) + HostCopy(has_flag(argc, argv, "--tiny") ? 1 : 4).checks();
  time_bandwidth(quick);
  time_launches();
  HostCopy(quick ? 16 : 256).time();
  return 0;
}
