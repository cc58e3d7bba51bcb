/* What this machine can do at most: reading memory, 8-bit products, 32-bit products, with all given threads.

   Compiled with -march=native by machine.py and run as: machine_limits THREADS. Prints one JSON object. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { kMostThreads = 256, kRounds = 7 };
static const size_t kReadBytes = (size_t)256 << 20; /* of all threads together: far more than any cache holds */
static const long kProductLoops = 4000000;

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

typedef struct {
  const uint8_t* bytes;
  size_t num_bytes;
  double work; /* set by the body: bytes read or operations done */
  double begin_s[kRounds], end_s[kRounds];
  uint64_t sink;
  pthread_barrier_t* barrier;
  void (*body)(void*);
} Job;

static void Read(void* argument) {
  Job* job = argument;
  uint64_t sums[8] = {0}, words[8];
  for (size_t i = 0; i + 64 <= job->num_bytes; i += 64) {
    memcpy(words, job->bytes + i, 64);
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  for (int j = 0; j < 8; ++j) job->sink += sums[j];
  job->work = (double)job->num_bytes;
}

/* Ten independent sums: enough to hide the latency of a product. The empty asm keeps the operands opaque. */
#define TEN(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9)
#define OPAQUE(x) __asm__ volatile("" : "+x"(x))

#if defined(__AVX512F__)
static const char* const kInt8Name =
#if defined(__AVX512VNNI__)
    "vpdpbusd, 512 bits";
#else
    "vpmaddubsw with 16-bit sums, 512 bits";
#endif
static void Int8(void* argument) {
  Job* job = argument;
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1), s[10];
  for (int i = 0; i < 10; ++i) s[i] = _mm512_setzero_si512();
  for (long loop = 0; loop < kProductLoops; ++loop) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
#if defined(__AVX512VNNI__)
#define STEP(i) s[i] = _mm512_dpbusd_epi32(s[i], a, b);
#else
#define STEP(i) s[i] = _mm512_add_epi16(s[i], _mm512_maddubs_epi16(a, b));
#endif
    TEN(STEP)
#undef STEP
  }
  for (int i = 1; i < 10; ++i) s[0] = _mm512_add_epi32(s[0], s[i]);
  job->sink += (uint64_t)_mm512_reduce_add_epi32(s[0]);
  job->work = 2.0 * 64 * 10 * kProductLoops;
}
static void Float(void* argument) {
  Job* job = argument;
  __m512 a = _mm512_set1_ps(1e-3f), b = _mm512_set1_ps(1e-3f), s[10];
  for (int i = 0; i < 10; ++i) s[i] = _mm512_setzero_ps();
  for (long loop = 0; loop < kProductLoops; ++loop) {
    __asm__ volatile("" : "+v"(a), "+v"(b));
#define STEP(i) s[i] = _mm512_fmadd_ps(a, b, s[i]);
    TEN(STEP)
#undef STEP
  }
  for (int i = 1; i < 10; ++i) s[0] = _mm512_add_ps(s[0], s[i]);
  job->sink += (uint64_t)_mm512_reduce_add_ps(s[0]);
  job->work = 2.0 * 16 * 10 * kProductLoops;
}
#elif defined(__AVX2__) && defined(__FMA__)
static const char* const kInt8Name = "vpmaddubsw with 16-bit sums, 256 bits";
static void Int8(void* argument) {
  Job* job = argument;
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(1), s[10];
  for (int i = 0; i < 10; ++i) s[i] = _mm256_setzero_si256();
  for (long loop = 0; loop < kProductLoops; ++loop) {
    OPAQUE(a);
    OPAQUE(b);
#define STEP(i) s[i] = _mm256_add_epi16(s[i], _mm256_maddubs_epi16(a, b));
    TEN(STEP)
#undef STEP
  }
  for (int i = 1; i < 10; ++i) s[0] = _mm256_add_epi16(s[0], s[i]);
  job->sink += (uint64_t)_mm256_extract_epi64(s[0], 0);
  job->work = 2.0 * 32 * 10 * kProductLoops;
}
static void Float(void* argument) {
  Job* job = argument;
  __m256 a = _mm256_set1_ps(1e-3f), b = _mm256_set1_ps(1e-3f), s[10];
  for (int i = 0; i < 10; ++i) s[i] = _mm256_setzero_ps();
  for (long loop = 0; loop < kProductLoops; ++loop) {
    OPAQUE(a);
    OPAQUE(b);
#define STEP(i) s[i] = _mm256_fmadd_ps(a, b, s[i]);
    TEN(STEP)
#undef STEP
  }
  for (int i = 1; i < 10; ++i) s[0] = _mm256_add_ps(s[0], s[i]);
  job->sink += (uint64_t)_mm256_cvtss_f32(s[0]);
  job->work = 2.0 * 8 * 10 * kProductLoops;
}
#else
static const char* const kInt8Name = "";
static void Int8(void* argument) { ((Job*)argument)->work = 0.0; }
static void Float(void* argument) { ((Job*)argument)->work = 0.0; }
#endif

static void* Work(void* argument) {
  Job* job = argument;
  for (int round = 0; round < kRounds; ++round) {
    pthread_barrier_wait(job->barrier);
    job->begin_s[round] = Now();
    job->body(job);
    job->end_s[round] = Now();
  }
  return NULL;
}

/* The best round, in units of 1e9 a second: from the first thread's begin to the last one's end. */
static double Best(void (*body)(void*), Job* jobs, int num_threads) {
  pthread_barrier_t barrier;
  pthread_t threads[kMostThreads];
  double best = 0.0;
  pthread_barrier_init(&barrier, NULL, num_threads);
  for (int i = 0; i < num_threads; ++i) {
    jobs[i].body = body;
    jobs[i].barrier = &barrier;
    if (pthread_create(&threads[i], NULL, Work, &jobs[i])) exit(1);
  }
  for (int i = 0; i < num_threads; ++i) pthread_join(threads[i], NULL);
  for (int round = 0; round < kRounds; ++round) {
    double begin_s = jobs[0].begin_s[round], end_s = jobs[0].end_s[round], work = 0.0;
    for (int i = 0; i < num_threads; ++i) {
      if (jobs[i].begin_s[round] < begin_s) begin_s = jobs[i].begin_s[round];
      if (jobs[i].end_s[round] > end_s) end_s = jobs[i].end_s[round];
      work += jobs[i].work;
    }
    if (work / (end_s - begin_s) > best) best = work / (end_s - begin_s);
  }
  pthread_barrier_destroy(&barrier);
  return best * 1e-9;
}

int main(int argc, char** argv) {
  const int num_threads = argc == 2 ? atoi(argv[1]) : 0;
  if (num_threads < 1 || num_threads > kMostThreads) return 2;
  uint8_t* bytes = mmap(NULL, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) return 1;
  madvise(bytes, kReadBytes, MADV_HUGEPAGE);
  memset(bytes, 1, kReadBytes);
  static Job jobs[kMostThreads];
  for (int i = 0; i < num_threads; ++i) {
    jobs[i].num_bytes = kReadBytes / num_threads / 64 * 64;
    jobs[i].bytes = bytes + i * jobs[i].num_bytes;
  }
  const double read = Best(Read, jobs, num_threads);
  const double int8 = Best(Int8, jobs, num_threads);
  const double fp32 = Best(Float, jobs, num_threads);
  uint64_t sink = 0;
  for (int i = 0; i < num_threads; ++i) sink += jobs[i].sink;
  printf("{\"read_gb_s\": %.2f, \"int8_gop_s\": %.1f, \"float32_gflop_s\": %.1f, \"int8_instruction\": \"%s\", \"sink\": %d}\n",
         read, int8, fp32, kInt8Name, (int)(sink & 1));
  return 0;
}
