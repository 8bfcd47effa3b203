// GEMM through cuBLASLt for the projection shapes of two models: out[m, n] = x[m, k] w[n, k]'.
// Usage: gemm --cublaslt PATH [--quick]. The library is opened at run time, so building needs its header only.
#include <cublasLt.h>
#include <dlfcn.h>

#include "common.cuh"

namespace {

void* library = nullptr;

template <typename F>
F symbol(const char* name) {
  void* f = dlsym(library, name);
  if (!f) {
    fprintf(stderr, "cuBLASLt has no %s\n", name);
    exit(1);
  }
  return reinterpret_cast<F>(f);
}
#define LT(name) symbol<decltype(&name)>(#name)
#define CHECK_LT(call)                                                                \
  do {                                                                                \
    cublasStatus_t st_ = (call);                                                      \
    if (st_ != CUBLAS_STATUS_SUCCESS) {                                               \
      fprintf(stderr, "%s:%d: %s: status %d\n", __FILE__, __LINE__, #call, st_);      \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

constexpr size_t kWorkspace = 32u << 20;
constexpr size_t kArena = 3ull << 30;  // weights: several copies of one matrix, so that L2 does not hold them

struct Shape {
  const char* op;
  int n, k;
};
struct Model {
  const char* name;
  int hidden, heads, kv_heads, head_size, inner, vocab;
  std::vector<Shape> shapes(int tp) const {
    return {{"qkv", (heads + 2 * kv_heads) * head_size / tp, hidden},
            {"o", hidden, heads * head_size / tp},
            {"gate_up", 2 * inner / tp, hidden},
            {"down", hidden, inner / tp},
            {"lm_head", vocab / tp, hidden}};
  }
};
const Model kModels[] = {{"llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256}, {"qwen2.5-14b", 5120, 40, 8, 128, 13824, 152064}};
const std::vector<int> kRowsAll{1, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 4096, 8192};

// Float64 dot products of sampled output elements, one warp each.
template <typename T>
__global__ void sample_kernel(const T* x, const T* w, int m, int n, int k, int count, int* at, double* want) {
  int i = blockIdx.x, lane = threadIdx.x;
  size_t r = mix(2 * i + 1) % m, c = mix(2 * i + 12345) % n;
  double sum = 0;
  for (int d = lane; d < k; d += 32)
    sum += static_cast<double>(static_cast<float>(x[r * k + d])) * static_cast<double>(static_cast<float>(w[c * k + d]));
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  if (lane == 0) at[2 * i] = r, at[2 * i + 1] = c, want[i] = sum;
}

template <typename T>
class Gemm {
 public:
  Gemm() {
    CHECK_LT(LT(cublasLtCreate)(&handle_));
    arena_ = device_alloc<T>(kArena / sizeof(T));
    fill_random(arena_, kArena / sizeof(T), 3, 1.0f);
    x_ = device_alloc<T>(8192ull * 14336);
    fill_random(x_, 8192ull * 14336, 4, 1.0f);
    out_ = device_alloc<bf16>(8192ull * 28672);
    workspace_ = device_alloc<char>(kWorkspace);
    one_ = to_device(std::vector<float>{1.0f});
    CHECK(cudaStreamCreate(&stream_));
  }
  ~Gemm() {
    for (void* p : {static_cast<void*>(arena_), static_cast<void*>(x_), static_cast<void*>(out_), static_cast<void*>(workspace_), static_cast<void*>(one_)})
      CHECK(cudaFree(p));
    LT(cublasLtDestroy)(handle_);
  }

  static constexpr bool kFp8 = sizeof(T) == 1;

  void prepare(int m, int n, int k) {
    m_ = m, n_ = n, k_ = k;
    cudaDataType_t in = kFp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
    CHECK_LT(LT(cublasLtMatmulDescCreate)(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t t = CUBLAS_OP_T;
    auto set = LT(cublasLtMatmulDescSetAttribute);
    CHECK_LT(set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
    if (kFp8) {
      int8_t fast = 1;
      CHECK_LT(set(desc_, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
      CHECK_LT(set(desc_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &one_, sizeof one_));
      CHECK_LT(set(desc_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &one_, sizeof one_));
    }
    auto layout = LT(cublasLtMatrixLayoutCreate);
    CHECK_LT(layout(&a_, in, k, n, k));
    CHECK_LT(layout(&b_, in, k, m, k));
    CHECK_LT(layout(&d_, CUDA_R_16BF, n, m, n));
    cublasLtMatmulPreference_t pref;
    CHECK_LT(LT(cublasLtMatmulPreferenceCreate)(&pref));
    CHECK_LT(LT(cublasLtMatmulPreferenceSetAttribute)(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace));
    int found = 0;
    CHECK_LT(LT(cublasLtMatmulAlgoGetHeuristic)(handle_, desc_, a_, b_, d_, d_, pref, 1, &choice_, &found));
    if (!found) {
      fprintf(stderr, "cuBLASLt offers no algorithm for m %d n %d k %d\n", m, n, k);
      exit(1);
    }
    LT(cublasLtMatmulPreferenceDestroy)(pref);
    copies_ = static_cast<int>(std::max(1.0, std::min(static_cast<double>(kArena / sizeof(T)) / (static_cast<double>(n) * k), std::ceil(400e6 / (static_cast<double>(n) * k * sizeof(T))))));
  }
  void release() {
    LT(cublasLtMatmulDescDestroy)(desc_);
    for (cublasLtMatrixLayout_t l : {a_, b_, d_}) LT(cublasLtMatrixLayoutDestroy)(l);
  }
  void launch(int i) {
    static auto matmul = LT(cublasLtMatmul);
    float alpha = 1, beta = 0;
    CHECK_LT(matmul(handle_, desc_, &alpha, arena_ + static_cast<size_t>(i % copies_) * n_ * k_, a_, x_, b_, &beta, out_, d_, out_, d_,
                    &choice_.algo, workspace_, kWorkspace, stream_));
  }
  // Relative error over sampled elements; the output is poisoned first.
  double error() {
    constexpr int kSamples = 256;
    CHECK(cudaMemsetAsync(out_, 0xff, static_cast<size_t>(m_) * n_ * sizeof(bf16), stream_));
    launch(0);
    CHECK(cudaStreamSynchronize(stream_));
    int* at = device_alloc<int>(2 * kSamples);
    double* want = device_alloc<double>(kSamples);
    sample_kernel<T><<<kSamples, 32>>>(x_, arena_, m_, n_, k_, kSamples, at, want);
    CHECK_LAUNCH();
    std::vector<int> where = to_host(at, 2 * kSamples);
    std::vector<double> ref = to_host(want, kSamples);
    std::vector<bf16> got(kSamples);
    for (int i = 0; i < kSamples; ++i)
      CHECK(cudaMemcpy(&got[i], out_ + static_cast<size_t>(where[2 * i]) * n_ + where[2 * i + 1], sizeof(bf16), cudaMemcpyDeviceToHost));
    CHECK(cudaFree(at));
    CHECK(cudaFree(want));
    return relative_error(got, ref);
  }
  Timing time() { return time_graph(stream_, copies_, [&](int i) { launch(i); }); }

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t desc_;
  cublasLtMatrixLayout_t a_, b_, d_;
  cublasLtMatmulHeuristicResult_t choice_;
  cudaStream_t stream_;
  T *arena_, *x_;
  bf16* out_;
  char* workspace_;
  float* one_;
  int m_ = 0, n_ = 0, k_ = 0, copies_ = 1;
};

template <typename T>
int grid(const char* dtype, bool quick, bool check_only) {
  Gemm<T> g;
  int bad = 0;
  for (const Model& model : kModels)
    for (int tp : {1, 2}) {
      if (quick && (tp > 1 || &model != kModels)) continue;
      double worst = 0;
      for (const Shape& s : model.shapes(tp))
        for (int m : kRowsAll) {
          if (!strcmp(s.op, "lm_head") && m > 1024) continue;  // only sampled rows reach the head
          if ((quick || check_only) && m != 1 && m != 64 && m != 512 && m != 2048) continue;
          g.prepare(m, s.n, s.k);
          double e = g.error();
          worst = e <= worst ? worst : e;
          if (!check_only) {
            Timing t = g.time();
            double flop = 2.0 * m * s.n * s.k, bytes = (static_cast<double>(s.n) * s.k + static_cast<double>(m) * s.k) * sizeof(T) + 2.0 * m * s.n;
            Row("gemm").text("kernel", "cublasLt").text("model", model.name).count("tp", tp).text("op", s.op).text("dtype", dtype)
                .count("m", m).count("n", s.n).count("k", s.k).timing(t).num("TFLOPs", flop / t.us / 1e6).num("GBps", bytes / t.us / 1e3).print();
          }
          g.release();
        }
      bad += report_check("gemm", format("%s, tp %d, %s, all shapes", model.name, tp, dtype), worst, 1e-2);
    }
  if (!check_only) {  // the ceiling other rows are held against
    g.prepare(8192, 8192, 8192);
    Timing t = g.time();
    Row("ceiling").text("kernel", "cublasLt").text("what", format("gemm 8192x8192x8192 %s", dtype)).timing(t).num("TFLOPs", 2 * std::pow(8192.0, 3) / t.us / 1e6).print();
    g.release();
  }
  return bad;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i)
    if (!strcmp(argv[i], "--cublaslt")) library = dlopen(argv[i + 1], RTLD_NOW);
  if (!library) {
    fprintf(stderr, "cannot open cuBLASLt: %s\n", dlerror());
    return 1;
  }
  bool quick = has_flag(argc, argv, "--quick"), check = has_flag(argc, argv, "--check");
  Row("versions").count("cublasLt", static_cast<long long>(LT(cublasLtGetVersion)())).print();
  return grid<bf16>("bf16", quick, check) + grid<fp8>("e4m3", quick, check);
}
