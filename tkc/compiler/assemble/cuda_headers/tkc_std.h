#pragma once
#define TKC_API __host__ __device__ constexpr
#define TKC_D __host__ __device__
namespace cuda { namespace std {
using int8_t = signed char; using uint8_t = unsigned char; using int16_t = short; using uint16_t = unsigned short;
using int32_t = int; using uint32_t = unsigned; using int64_t = long long; using uint64_t = unsigned long long;
using size_t = decltype(sizeof(0)); using ptrdiff_t = decltype((char*)0 - (char*)0); using nullptr_t = decltype(nullptr);
using intptr_t = long; using uintptr_t = unsigned long;
template <class T, T v> struct integral_constant { static constexpr T value = v; using value_type = T; using type = integral_constant;
  TKC_API operator value_type() const noexcept { return v; } TKC_API value_type operator()() const noexcept { return v; } };
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>; using false_type = bool_constant<false>;
template <class...> using void_t = void;
template <bool B, class T = void> struct enable_if {}; template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { using type = T; }; template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct remove_const { using type = T; }; template <class T> struct remove_const<const T> { using type = T; };
template <class T> struct remove_volatile { using type = T; }; template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> struct remove_cv { using type = typename remove_const<typename remove_volatile<T>::type>::type; };
template <class T> struct remove_reference { using type = T; }; template <class T> struct remove_reference<T&> { using type = T; }; template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> struct remove_cvref { using type = typename remove_cv<typename remove_reference<T>::type>::type; };
template <class T> struct remove_pointer { using type = T; }; template <class T> struct remove_pointer<T*> { using type = T; };template <class T> struct remove_pointer<T* const> { using type = T; };template <class T> struct remove_pointer<T* volatile> { using type = T; };template <class T> struct remove_pointer<T* const volatile> { using type = T; };
template <class T> struct remove_extent { using type = T; }; template <class T> struct remove_extent<T[]> { using type = T; }; template <class T, size_t N> struct remove_extent<T[N]> { using type = T; };
template <class T> struct add_const { using type = const T; };
template <class T> struct type_identity { using type = T; };
template <class T> TKC_D auto tkc_add_lref(int) -> type_identity<T&>; template <class T> TKC_D auto tkc_add_lref(...) -> type_identity<T>;
template <class T> TKC_D auto tkc_add_rref(int) -> type_identity<T&&>; template <class T> TKC_D auto tkc_add_rref(...) -> type_identity<T>;
template <class T> TKC_D auto tkc_add_ptr(int) -> type_identity<typename remove_reference<T>::type*>; template <class T> TKC_D auto tkc_add_ptr(...) -> type_identity<T>;
template <class T> struct add_lvalue_reference : decltype(tkc_add_lref<T>(0)) {}; template <class T> struct add_rvalue_reference : decltype(tkc_add_rref<T>(0)) {};
template <class T> struct add_pointer : decltype(tkc_add_ptr<T>(0)) {};
#define TKC_T(n) template <class T> using n##_t = typename n<T>::type;
TKC_T(remove_const) TKC_T(remove_volatile) TKC_T(remove_cv) TKC_T(remove_reference) TKC_T(remove_cvref) TKC_T(remove_pointer) TKC_T(remove_extent) TKC_T(add_const) TKC_T(add_lvalue_reference) TKC_T(add_rvalue_reference) TKC_T(add_pointer)
template <class T> TKC_D add_rvalue_reference_t<T> declval() noexcept;
#define TKC_V1(n, ...) template <class T> struct n : bool_constant<__VA_ARGS__> {}; template <class T> inline constexpr bool n##_v = n<T>::value;
template <class T, class U> struct is_same : false_type {}; template <class T> struct is_same<T, T> : true_type {}; template <class T, class U> inline constexpr bool is_same_v = is_same<T,U>::value;
TKC_V1(is_void, is_same<remove_cv_t<T>, void>::value)
template <class T> struct tkc_is_integral : false_type {};
#define TKC_I(t) template <> struct tkc_is_integral<t> : true_type {};
TKC_I(bool) TKC_I(char) TKC_I(signed char) TKC_I(unsigned char) TKC_I(wchar_t) TKC_I(char8_t) TKC_I(char16_t) TKC_I(char32_t) TKC_I(short) TKC_I(unsigned short) TKC_I(int) TKC_I(unsigned) TKC_I(long) TKC_I(unsigned long) TKC_I(long long) TKC_I(unsigned long long) TKC_I(__int128) TKC_I(unsigned __int128)
TKC_V1(is_integral, tkc_is_integral<remove_cv_t<T>>::value)
TKC_V1(is_floating_point, is_same<remove_cv_t<T>, float>::value || is_same<remove_cv_t<T>, double>::value || is_same<remove_cv_t<T>, long double>::value)
TKC_V1(is_arithmetic, is_integral<T>::value || is_floating_point<T>::value)
template <class T, bool = is_arithmetic<T>::value> struct tkc_is_signed : bool_constant<(T(-1) < T(0))> {}; template <class T> struct tkc_is_signed<T, false> : false_type {};
template <class T, bool = is_arithmetic<T>::value> struct tkc_is_unsigned : bool_constant<(T(0) < T(-1))> {}; template <class T> struct tkc_is_unsigned<T, false> : false_type {};
TKC_V1(is_signed, tkc_is_signed<remove_cv_t<T>>::value) TKC_V1(is_unsigned, tkc_is_unsigned<remove_cv_t<T>>::value)
template <class T> struct tkc_is_ptr : false_type {}; template <class T> struct tkc_is_ptr<T*> : true_type {};
TKC_V1(is_pointer, tkc_is_ptr<remove_cv_t<T>>::value)
template <class T> struct is_lvalue_reference : false_type {}; template <class T> struct is_lvalue_reference<T&> : true_type {}; template <class T> inline constexpr bool is_lvalue_reference_v = is_lvalue_reference<T>::value;
template <class T> struct is_rvalue_reference : false_type {}; template <class T> struct is_rvalue_reference<T&&> : true_type {}; template <class T> inline constexpr bool is_rvalue_reference_v = is_rvalue_reference<T>::value;
TKC_V1(is_reference, is_lvalue_reference<T>::value || is_rvalue_reference<T>::value)
template <class T> struct is_const : false_type {}; template <class T> struct is_const<const T> : true_type {}; template <class T> inline constexpr bool is_const_v = is_const<T>::value;
template <class T> struct is_volatile : false_type {}; template <class T> struct is_volatile<volatile T> : true_type {}; template <class T> inline constexpr bool is_volatile_v = is_volatile<T>::value;
template <class T> struct is_array : false_type {}; template <class T> struct is_array<T[]> : true_type {}; template <class T, size_t N> struct is_array<T[N]> : true_type {}; template <class T> inline constexpr bool is_array_v = is_array<T>::value;
TKC_V1(is_enum, __is_enum(T)) TKC_V1(is_class, __is_class(T)) TKC_V1(is_union, __is_union(T)) TKC_V1(is_empty, __is_empty(T)) TKC_V1(is_standard_layout, __is_standard_layout(T)) TKC_V1(is_trivially_copyable, __is_trivially_copyable(T)) TKC_V1(is_default_constructible, __is_constructible(T))
TKC_V1(is_function, !is_const<const T>::value && !is_reference<T>::value)
template <class B, class D> struct is_base_of : bool_constant<__is_base_of(B, D)> {}; template <class B, class D> inline constexpr bool is_base_of_v = is_base_of<B,D>::value;
template <class F, class T> struct is_convertible : bool_constant<__is_convertible_to(F, T)> {}; template <class F, class T> inline constexpr bool is_convertible_v = is_convertible<F,T>::value;
template <class T, class... A> struct is_constructible : bool_constant<__is_constructible(T, A...)> {}; template <class T, class... A> inline constexpr bool is_constructible_v = is_constructible<T, A...>::value;
template <class T> struct alignment_of : integral_constant<size_t, alignof(T)> {}; template <class T> inline constexpr size_t alignment_of_v = alignof(T);
template <class T, unsigned I = 0> struct extent : integral_constant<size_t, 0> {}; template <class T> struct extent<T[], 0> : integral_constant<size_t, 0> {}; template <class T, unsigned I> struct extent<T[], I> : extent<T, I-1> {}; template <class T, size_t N> struct extent<T[N], 0> : integral_constant<size_t, N> {}; template <class T, size_t N, unsigned I> struct extent<T[N], I> : extent<T, I-1> {};
template <class T, unsigned I = 0> inline constexpr size_t extent_v = extent<T, I>::value;
template <class...> struct conjunction : true_type {}; template <class B> struct conjunction<B> : B {}; template <class B, class... R> struct conjunction<B, R...> : conditional_t<bool(B::value), conjunction<R...>, B> {};
template <class...> struct disjunction : false_type {}; template <class B> struct disjunction<B> : B {}; template <class B, class... R> struct disjunction<B, R...> : conditional_t<bool(B::value), B, disjunction<R...>> {};
template <class B> struct negation : bool_constant<!bool(B::value)> {};
template <class... B> inline constexpr bool conjunction_v = conjunction<B...>::value; template <class... B> inline constexpr bool disjunction_v = disjunction<B...>::value; template <class B> inline constexpr bool negation_v = negation<B>::value;
template <class T> struct decay { using U = remove_reference_t<T>; using type = conditional_t<is_array<U>::value, remove_extent_t<U>*, conditional_t<is_function<U>::value, add_pointer_t<U>, remove_cv_t<U>>>; };
TKC_T(decay)
template <class... T> struct common_type {}; template <class T> struct common_type<T> : common_type<T, T> {};
template <class A, class B> struct common_type<A, B> { using type = decay_t<decltype(false ? declval<decay_t<A>>() : declval<decay_t<B>>())>; };
template <class A, class B, class... R> struct common_type<A, B, R...> : common_type<typename common_type<A, B>::type, R...> {};
template <class... T> using common_type_t = typename common_type<T...>::type;
template <class T> struct underlying_type { using type = __underlying_type(T); }; TKC_T(underlying_type)
template <class T> struct tkc_signed; 
#define TKC_S(u, s) template <> struct tkc_signed<u> { using type = s; using utype = u; }; template <> struct tkc_signed<s> { using type = s; using utype = u; };
TKC_S(unsigned char, signed char) TKC_S(unsigned short, short) TKC_S(unsigned, int) TKC_S(unsigned long, long) TKC_S(unsigned long long, long long) TKC_S(unsigned __int128, __int128)
template <> struct tkc_signed<char> { using type = signed char; using utype = unsigned char; };
template <class T> struct make_signed { using type = typename tkc_signed<T>::type; }; template <class T> struct make_unsigned { using type = typename tkc_signed<T>::utype; }; TKC_T(make_signed) TKC_T(make_unsigned)
template <class F, class... A> struct invoke_result { using type = decltype(declval<F>()(declval<A>()...)); }; template <class F, class... A> using invoke_result_t = typename invoke_result<F, A...>::type;
template <class T> TKC_API T&& forward(remove_reference_t<T>& t) noexcept { return static_cast<T&&>(t); } template <class T> TKC_API T&& forward(remove_reference_t<T>&& t) noexcept { return static_cast<T&&>(t); }
template <class T> TKC_API remove_reference_t<T>&& move(T&& t) noexcept { return static_cast<remove_reference_t<T>&&>(t); }
template <class T> TKC_API void swap(T& a, T& b) { T t(static_cast<T&&>(a)); a = static_cast<T&&>(b); b = static_cast<T&&>(t); }
template <class T, T... I> struct integer_sequence { using value_type = T; static TKC_API size_t size() noexcept { return sizeof...(I); } };
template <class T, T N> using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>; template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;
template <class T> struct tuple_size; template <size_t I, class T> struct tuple_element; template <size_t I, class T> using tuple_element_t = typename tuple_element<I, T>::type;
template <class... T> struct tuple; template <class... T> struct tuple_size<tuple<T...>> : integral_constant<size_t, sizeof...(T)> {};
template <class H, class... T> struct tuple_element<0, tuple<H, T...>> { using type = H; }; template <size_t I, class H, class... T> struct tuple_element<I, tuple<H, T...>> : tuple_element<I - 1, tuple<T...>> {};
enum float_round_style { round_indeterminate = -1, round_toward_zero, round_to_nearest, round_toward_infinity, round_toward_neg_infinity };
enum float_denorm_style { denorm_indeterminate = -1, denorm_absent, denorm_present };
template <class T, bool = is_integral<T>::value> struct tkc_limits { static constexpr bool is_specialized = false; };
template <class T> struct tkc_limits<T, true> { static constexpr bool is_specialized = true, is_integer = true, is_signed = T(-1) < T(0), has_infinity = false, is_exact = true; static constexpr int digits = sizeof(T)*8 - is_signed, radix = 2;
 static TKC_API T min() noexcept { return is_signed ? T(T(1) << digits) : T(0); } static TKC_API T max() noexcept { return T(~min()); } static TKC_API T lowest() noexcept { return min(); } };
template <class T> struct numeric_limits : tkc_limits<T> {};
template <> struct numeric_limits<float> { static constexpr bool is_specialized = true, is_integer = false, is_signed = true, has_infinity = true; static constexpr int digits = 24;
 static TKC_API float min() noexcept { return 1.17549435e-38f; } static TKC_API float max() noexcept { return 3.40282347e+38f; } static TKC_API float lowest() noexcept { return -3.40282347e+38f; } static TKC_API float infinity() noexcept { return __builtin_bit_cast(float, 0x7f800000); } };
template <> struct numeric_limits<double> { static constexpr bool is_specialized = true, is_integer = false, is_signed = true, has_infinity = true; static constexpr int digits = 53;
 static TKC_API double infinity() noexcept { return __builtin_bit_cast(double, 0x7ff0000000000000ull); } static TKC_API double lowest() noexcept { return -1.7976931348623157e308; }};
}}
