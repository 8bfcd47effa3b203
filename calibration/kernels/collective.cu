// All-reduce and peer copies between the GPUs of one host: NCCL (opened at run time) and an own one-shot kernel.
// Usage: collective [--nccl PATH] [--check]. One thread drives one GPU. NVLink multicast stays off.
#include <dlfcn.h>
#include <pthread.h>

#include <thread>

#include "common.cuh"

namespace {

constexpr int kMaxRanks = 8, kOneShotBlocks = 64, kOneShotThreads = 512;

// ---- NCCL, declared here by its public ABI so that no header is needed -------------------------------------
struct NcclId {
  char bytes[128];
};
using NcclComm = void*;
constexpr int kNcclBf16 = 9, kNcclSum = 0;
struct Nccl {
  void* lib = nullptr;
  int (*version)(int*);
  int (*unique_id)(NcclId*);
  int (*init_rank)(NcclComm*, int, NcclId, int);
  int (*all_reduce)(const void*, void*, size_t, int, int, NcclComm, cudaStream_t);
  int (*destroy)(NcclComm);
  bool open(const char* path) {
    lib = dlopen(path, RTLD_NOW);
    if (!lib) return false;
    version = reinterpret_cast<decltype(version)>(dlsym(lib, "ncclGetVersion"));
    unique_id = reinterpret_cast<decltype(unique_id)>(dlsym(lib, "ncclGetUniqueId"));
    init_rank = reinterpret_cast<decltype(init_rank)>(dlsym(lib, "ncclCommInitRank"));
    all_reduce = reinterpret_cast<decltype(all_reduce)>(dlsym(lib, "ncclAllReduce"));
    destroy = reinterpret_cast<decltype(destroy)>(dlsym(lib, "ncclCommDestroy"));
    return version && unique_id && init_rank && all_reduce && destroy;
  }
};
#define CHECK_NCCL(call)                                                       \
  do {                                                                         \
    int st_ = (call);                                                          \
    if (st_) {                                                                 \
      fprintf(stderr, "%s:%d: %s: status %d\n", __FILE__, __LINE__, #call, st_); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

// ---- one-shot all-reduce over peer memory ------------------------------------------------------------------
struct Peers {
  const bf16* input[kMaxRanks];
  uint32_t* flags[kMaxRanks];  // [2 phases][block][rank], in each rank's memory, written by the others
  uint32_t* epoch;             // [block], own
  int rank, ranks;
};

__device__ __forceinline__ void meet(const Peers& p, int phase, uint32_t epoch) {
  int r = threadIdx.x;
  if (r < p.ranks) {
    size_t at = (static_cast<size_t>(phase) * kOneShotBlocks + blockIdx.x) * kMaxRanks;
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p.flags[r] + at + p.rank), "r"(epoch) : "memory");
    uint32_t seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(p.flags[p.rank] + at + r) : "memory");
    while (static_cast<int>(seen - epoch) < 0);
  }
  __syncthreads();
}

// out = sum over ranks of their inputs; `vecs` words of 8 elements. Sums in float32, in rank order, on every rank.
__global__ void __launch_bounds__(kOneShotThreads) one_shot_kernel(const Peers p, bf16* out, size_t vecs) {
  uint32_t epoch = p.epoch[blockIdx.x] + 1;
  meet(p, 0, epoch);
  size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < vecs; i += stride) {
    uint4 raw[kMaxRanks];
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r)
      if (r < p.ranks) raw[r] = reinterpret_cast<const uint4*>(p.input[r])[i];
    float sum[8] = {};
#pragma unroll
    for (int r = 0; r < kMaxRanks; ++r)
      if (r < p.ranks) {
        const __nv_bfloat162* h = reinterpret_cast<const __nv_bfloat162*>(&raw[r]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float2 x = __bfloat1622float2(h[j]);
          sum[2 * j] += x.x, sum[2 * j + 1] += x.y;
        }
      }
    uint4 packed;
    __nv_bfloat162* h = reinterpret_cast<__nv_bfloat162*>(&packed);
#pragma unroll
    for (int j = 0; j < 4; ++j) h[j] = __floats2bfloat162_rn(sum[2 * j], sum[2 * j + 1]);
    reinterpret_cast<uint4*>(out)[i] = packed;
  }
  __syncthreads();
  meet(p, 1, epoch);  // inputs may be overwritten only when every rank has read them
  if (threadIdx.x == 0) p.epoch[blockIdx.x] = epoch;
}

// ---- ranks ---------------------------------------------------------------------------------------------------
constexpr size_t kMost = 256ull << 20;
constexpr size_t kOneShotMost = 32ull << 20;

struct Shared {
  int ranks;
  Nccl* nccl;
  NcclId id;
  pthread_barrier_t barrier;
  bf16 *in[kMaxRanks], *out[kMaxRanks];
  uint32_t* flags[kMaxRanks];
  std::vector<double> times[kMaxRanks];
  int bad[kMaxRanks] = {};
};

class Rank {
 public:
  Rank(Shared& s, int rank) : s_(s), rank_(rank) {
    CHECK(cudaSetDevice(rank));
    for (int r = 0; r < s.ranks; ++r)
      if (r != rank) CHECK(cudaDeviceEnablePeerAccess(r, 0));
    CHECK(cudaStreamCreate(&stream_));
    s.in[rank] = device_alloc<bf16>(kMost / 2);
    s.out[rank] = device_alloc<bf16>(kMost / 2);
    s.flags[rank] = device_alloc<uint32_t>(2ull * kOneShotBlocks * kMaxRanks);
    CHECK(cudaMemset(s.flags[rank], 0, 8ull * kOneShotBlocks * kMaxRanks));
    epoch_ = device_alloc<uint32_t>(kOneShotBlocks);
    CHECK(cudaMemset(epoch_, 0, kOneShotBlocks * 4));
    fill_random(s.in[rank], kMost / 2, 100 + rank);
    if (s.nccl->lib) CHECK_NCCL(s.nccl->init_rank(&comm_, s.ranks, s.id, rank));
    wait();
    peers_.epoch = epoch_, peers_.rank = rank, peers_.ranks = s.ranks;
    for (int r = 0; r < s.ranks; ++r) peers_.input[r] = s.in[r], peers_.flags[r] = s.flags[r];
  }
  ~Rank() {
    wait();
    if (comm_) s_.nccl->destroy(comm_);
    CHECK(cudaStreamDestroy(stream_));
  }

  void run(bool check_only) {
    if (comm_) check("NCCL", [&](size_t n) { nccl(n); });
    check("one-shot", [&](size_t n) { one_shot(n); });
    if (check_only) return;
    for (size_t bytes = 2048; bytes <= kMost; bytes *= 2) {
      if (comm_) time("NCCL", bytes, [&] { nccl(bytes / 2); });
      if (bytes <= kOneShotMost) time("own one-shot over peer memory", bytes, [&] { one_shot(bytes / 2); });
    }
  }

 private:
  void wait() { pthread_barrier_wait(&s_.barrier); }
  void nccl(size_t n) { CHECK_NCCL(s_.nccl->all_reduce(s_.in[rank_], s_.out[rank_], n, kNcclBf16, kNcclSum, comm_, stream_)); }
  void one_shot(size_t n) {
    size_t vecs = n / 8;
    int blocks = static_cast<int>(std::min<size_t>(kOneShotBlocks, (vecs + kOneShotThreads - 1) / kOneShotThreads));
    one_shot_kernel<<<blocks, kOneShotThreads, 0, stream_>>>(peers_, s_.out[rank_], vecs);
    CHECK_LAUNCH();
  }

  void check(const char* kernel, const std::function<void(size_t)>& reduce) {
    for (size_t n : {4096ul, 1000000ul}) {
      CHECK(cudaMemset(s_.out[rank_], 0xff, n * 2));
      CHECK(cudaDeviceSynchronize());
      wait();
      reduce(n);
      CHECK(cudaStreamSynchronize(stream_));
      std::vector<double> want(n, 0.0);
      for (int r = 0; r < s_.ranks; ++r)
        for (size_t i = 0; i < n; ++i) want[i] += static_cast<float>(static_cast<bf16>(noise(i, 100 + r, 1.0f)));
      double e = relative_error(to_host(s_.out[rank_], n), want);
      for (int r = 0; r < s_.ranks; ++r) {
        wait();
        if (r == rank_) s_.bad[rank_] += report_check(std::string("all_reduce ") + kernel, format("rank %d of %d, %zu elements", rank_, s_.ranks, n), e, 1e-2);
      }
      wait();
    }
  }

  // The number of launches a graph depends on the size alone: every rank must replay the same sequence.
  void time(const char* kernel, size_t bytes, const std::function<void()>& reduce) {
    int n = bytes <= (1u << 20) ? 50 : bytes <= (32u << 20) ? 10 : 3;
    cudaEvent_t a, b;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    for (int i = 0; i < 3; ++i) reduce();
    CHECK(cudaStreamSynchronize(stream_));
    wait();
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; ++i) reduce();
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double>& v = s_.times[rank_];
    v.clear();
    for (int i = 0; i < kMinSamples + 3; ++i) {
      wait();
      CHECK(cudaEventRecord(a, stream_));
      CHECK(cudaGraphLaunch(exec, stream_));
      CHECK(cudaEventRecord(b, stream_));
      CHECK(cudaEventSynchronize(b));
      float ms = 0;
      CHECK(cudaEventElapsedTime(&ms, a, b));
      if (i >= 3) v.push_back(1e3 * ms / n);
    }
    wait();
    if (rank_ == 0) report(kernel, bytes);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventDestroy(a));
    CHECK(cudaEventDestroy(b));
    wait();
  }
  void report(const char* kernel, size_t bytes) {
    std::vector<double> slowest = s_.times[0];
    for (int r = 1; r < s_.ranks; ++r)
      for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], s_.times[r][i]);
    Timing t = summarise(slowest);
    double bus = 2.0 * (s_.ranks - 1) / s_.ranks * bytes;
    Row("all_reduce").text("kernel", kernel).count("gpus", s_.ranks).text("dtype", "bf16").count("bytes", static_cast<long long>(bytes)).timing(t)
        .num("bus_GBps", bus / t.us / 1e3).print();
  }

  Shared& s_;
  int rank_;
  NcclComm comm_ = nullptr;
  cudaStream_t stream_;
  uint32_t* epoch_;
  Peers peers_ = {};
};

int all_reduces(Nccl& nccl, int ranks, bool check_only) {
  Shared s;
  s.ranks = ranks, s.nccl = &nccl;
  if (nccl.lib) CHECK_NCCL(nccl.unique_id(&s.id));
  pthread_barrier_init(&s.barrier, nullptr, ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] { Rank(s, r).run(check_only); });
  for (std::thread& t : threads) t.join();
  int bad = 0;
  for (int r = 0; r < ranks; ++r) {
    bad += s.bad[r];
    CHECK(cudaSetDevice(r));
    for (void* p : {static_cast<void*>(s.in[r]), static_cast<void*>(s.out[r]), static_cast<void*>(s.flags[r])}) CHECK(cudaFree(p));
    for (int q = 0; q < ranks; ++q)
      if (q != r) CHECK(cudaDeviceDisablePeerAccess(q));
  }
  pthread_barrier_destroy(&s.barrier);
  return bad;
}

// Microseconds of `launch(i)` between two events, without a graph.
Timing time_events(cudaStream_t stream, const std::function<void(int)>& launch) {
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  std::vector<double> v;
  for (int i = 0; i < kMinSamples + 3; ++i) {
    CHECK(cudaEventRecord(a, stream));
    launch(i);
    CHECK(cudaEventRecord(b, stream));
    CHECK(cudaEventSynchronize(b));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) v.push_back(1e3 * ms);
  }
  CHECK(cudaEventDestroy(a));
  CHECK(cudaEventDestroy(b));
  return summarise(v);
}

void peer_copies() {
  for (bool peer : {true, false}) {
    CHECK(cudaSetDevice(0));
    if (peer) CHECK(cudaDeviceEnablePeerAccess(1, 0));
    const size_t most = 1ull << 30;
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    char* here = device_alloc<char>(most);
    CHECK(cudaSetDevice(1));
    if (peer) CHECK(cudaDeviceEnablePeerAccess(0, 0));
    char* there = device_alloc<char>(most);
    CHECK(cudaSetDevice(0));
    for (size_t bytes = 32768; bytes <= most; bytes *= 8) {
      auto copy = [&](int) { CHECK(cudaMemcpyPeerAsync(there, 1, here, 0, bytes, s)); };
      Timing t = time_events(s, copy);  // peer copies cannot be captured in a graph
      Row("peer_copy").text("path", peer ? "peer access" : "no peer access (through the host)").count("bytes", static_cast<long long>(bytes)).timing(t)
          .num("GBps", bytes / t.us / 1e3).print();
    }
    CHECK(cudaFree(here));
    CHECK(cudaSetDevice(1));
    CHECK(cudaFree(there));
    if (peer) CHECK(cudaDeviceDisablePeerAccess(0));
    CHECK(cudaSetDevice(0));
    if (peer) CHECK(cudaDeviceDisablePeerAccess(1));
    CHECK(cudaStreamDestroy(s));
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus));
  gpus = std::min(gpus, kMaxRanks);
  if (gpus < 2) {
    fprintf(stderr, "collective: one GPU only, nothing to measure\n");
    return 0;
  }
  for (int a = 0; a < gpus; ++a)
    for (int b = 0; b < gpus; ++b) {
      int can = 1;
      if (a != b) CHECK(cudaDeviceCanAccessPeer(&can, a, b));
      if (!can) {
        fprintf(stderr, "collective: GPUs %d and %d cannot reach each other's memory\n", a, b);
        return 1;
      }
    }
  Nccl nccl;
  for (int i = 1; i + 1 < argc; ++i)
    if (!strcmp(argv[i], "--nccl") && !nccl.open(argv[i + 1])) fprintf(stderr, "collective: no NCCL at %s\n", argv[i + 1]);
  if (nccl.lib) {
    int v = 0;
    nccl.version(&v);
    Row("versions").count("nccl", v).print();
  }
  int bad = 0;
  for (int ranks = 2; ranks <= gpus; ranks *= 2) bad += all_reduces(nccl, ranks, has_flag(argc, argv, "--check"));
  if (!has_flag(argc, argv, "--check")) peer_copies();
  return bad;
}
